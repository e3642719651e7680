//! The threads of the paths that stay on this host, apart from those that drive sockets of the network.
//!
//! | thread | how many | what it runs | what it waits for |
//! |---|---|---|---|
//! | `transload-local` | one | handovers over the Unix socket, as async tasks | sockets |
//! | the same, blocking | [`MAPS`] at most | mappings of rings | memory |
//! | `transload-ring` | one for each ring and end | the streams of that ring | the peer |
//!
//! Whatever waits for a peer has a thread of its own, so that nobody else waits for that peer; whatever
//! is queued waits only for work that ends by itself.

use std::future::Future;
use std::io;

use thiserror::Error;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::path::ring::handover::{Limits, Listener};

/// Threads for mappings, each of which takes a few milliseconds.
const MAPS: usize = 2;

/// Where this agent meets others of its host.
#[derive(Debug)]
pub(super) struct Local {
    listener: Listener,
    handle: Handle,
    /// Only kept alive. Fields are dropped in order: the listener goes before.
    _threads: Threads,
}

/// A runtime that may be dropped inside of another, where tokio's own would wait for its threads, and so
/// panics.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Why there are no local paths.
#[derive(Debug, Error)]
pub(super) enum LocalError {
    #[error("no thread for local peers: {0}")]
    Thread(io::Error),
    #[error("no socket for local peers: {0}")]
    Listener(io::Error),
}

impl Local {
    pub(super) fn start() -> Result<Self, LocalError> {
        Self::start_with(|| Listener::bind(Limits::default()))
    }

    /// `bind` is called inside of the runtime that the listener will live in.
    fn start_with(bind: impl FnOnce() -> io::Result<Listener>) -> Result<Self, LocalError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAPS)
            .thread_name("transload-local")
            .enable_all()
            .build()
            .map_err(LocalError::Thread)?;
        let handle = runtime.handle().clone();
        let threads = Threads(Some(runtime));
        let listener = {
            let _inside = handle.enter();
            bind().map_err(LocalError::Listener)?
        };
        Ok(Self {
            listener,
            handle,
            _threads: threads,
        })
    }

    /// Where peers of this host connect.
    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Runs a handover, or what belongs to it.
    pub(super) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the driver does: a panic would take the whole agent down, where local paths are only an extra.
    #[tokio::test]
    async fn fail_and_end_inside_of_another_runtime() {
        let refused = Local::start_with(|| Err(io::ErrorKind::AddrInUse.into()));
        let Err(LocalError::Listener(error)) = refused else {
            panic!("not what bind has said: {refused:?}");
        };
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(Local::start().unwrap());
    }
}
