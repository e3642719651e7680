//! Two processes, each with the agent of one engine: what the demo and the benches of paths run on.
//!
//! The process that a user started is the destination. It starts its own program again as the source,
//! which computes (makes up) a request and leases its blocks; the destination pulls them.

mod archived;
mod child;
mod contents;
mod credentials;
mod engine;
mod gpu;
mod messages;
#[cfg(feature = "cuda")]
mod one_process;
mod pair;
mod source;

pub(super) use archived::Archived;
pub(super) use contents::Checked;
#[cfg(feature = "cuda")]
pub(super) use gpu::open as open_gpu;
pub(super) use gpu::{Gpu, find as find_gpu};
#[cfg(feature = "cuda")]
pub(super) use one_process::OneProcess;
pub(super) use pair::{Pair, Pulled};
pub(super) use source::run as run_source;

use crate::failure::Failure;

/// The hidden command that the second process is started with.
pub(super) const SOURCE_PROCESS: &str = "source-process";

/// Something that holds for every layout used here did not.
pub(super) fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::no(error.to_string(), "this is a fault of transload: report it")
}

/// For waiting only: agents have threads of their own.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::no(format!("no runtime: {error}"), "the system may be out of file descriptors"))
}
