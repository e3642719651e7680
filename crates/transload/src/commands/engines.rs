//! Two processes with one engine's agent each, used by the demo and the benches of paths.
//!
//! The process that the user started is the destination. It starts the same program again as the source, which makes up
//! a request and leases its blocks; the destination pulls them.

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

pub(super) const SOURCE_PROCESS: &str = "source-process";

/// Returns the failure for an error that cannot happen with the layouts used here.
pub(super) fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::no(error.to_string(), "this is a fault of transload: report it")
}

/// Creates a runtime that only waits, since agents have their own threads.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| {
        Failure::no(
            format!("cannot start the runtime: {error}"),
            "the system may be out of file \
                                                                                       descriptors or threads",
        )
    })
}
