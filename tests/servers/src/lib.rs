//! Code that the tests of the sidecar and of its command share: model servers that follow scripts, a real etcd, the
//! command as a process, clients, and a strict reader of HTTP that shares nothing with the sidecar's.
#![allow(missing_docs, reason = "a test is read with what it calls")]

mod client;
mod etcd;
mod fake;
mod process;
pub mod wire;

use std::time::{Duration, Instant};

pub use client::{Client, ask, get, request};
pub use etcd::Etcd;
pub use fake::{End, Fake, Script, write_parts};
pub use process::{Process, arguments};
pub use wire::Message;

/// A time limit that nothing here reaches, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
