//! The threads that drive sockets, and the runtime for quinn.

use std::{
    future::Future,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::{AsyncTimer, AsyncUdpSocket, Endpoint, Runtime, TokioRuntime};
use tokio::runtime::{Builder, Handle};

use super::socket::BatchingUdpSocket;

/// The most threads for blocking work, started when they are needed and ended ten seconds later: lookups of host names,
/// plans and routes, mappings of rings, and reading certificates again. Each kind is limited so that it cannot keep the
/// others waiting.
const BLOCKING: usize = 32;

/// A thread with a tokio runtime, which must never be blocked.
#[derive(Debug)]
pub(super) struct NetThread {
    runtime: Option<tokio::runtime::Runtime>,
    pub(super) handle: Handle,
}

impl NetThread {
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BLOCKING)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Lets a closed endpoint notify its peers, and then ends the thread. Does not wait for that, so it may be called
    /// inside of another runtime.
    pub(super) fn retire(&mut self, endpoint: Endpoint) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let goodbye = move || {
            runtime.block_on(async {
                // A peer that is too slow for the notification finds out by the idle timeout.
                let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
            });
            runtime.shutdown_background();
        };
        // If no thread can be started, peers find out by the idle timeout.
        if let Err(error) = std::thread::Builder::new().name("transload-goodbye".to_owned()).spawn(goodbye) {
            tracing::debug!(%error, "could not say goodbye");
        }
    }
}

impl Drop for NetThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A runtime that makes quinn spawn its tasks on a given thread, whichever runtime calls it.
#[derive(Debug)]
pub(super) struct OnThread {
    pub(super) thread: Handle,
    /// The largest payload that this endpoint can send or receive.
    pub(super) largest_payload: u16,
}

impl Runtime for OnThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _inside = self.thread.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.thread.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _inside = self.thread.enter();
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Arc::new(BatchingUdpSocket::new(socket, self.largest_payload)))
    }
}

/// How long closing waits for the last packets to leave.
pub(super) const GOODBYE: Duration = Duration::from_millis(500);
