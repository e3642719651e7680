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

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use super::handover::{Limits, Listener};

/// Threads for mappings, each of which takes a few milliseconds.
const MAPS: usize = 2;

/// Where this agent meets others of its host.
#[derive(Debug)]
pub(super) struct Threads {
    listener: Listener,
    handle: Handle,
    /// Only kept alive. Fields are dropped in order: the listener goes before.
    _runtime: Kept,
}

/// A runtime that may be dropped inside of another, where tokio's own would wait for its threads, and so
/// panics.
#[derive(Debug)]
struct Kept(Option<Runtime>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Threads {
    pub(super) fn start() -> io::Result<Self> {
        Self::start_with(|| Listener::bind(Limits::default()))
    }

    /// `bind` is called inside of the runtime that the listener will live in.
    fn start_with(bind: impl FnOnce() -> io::Result<Listener>) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAPS)
            .thread_name("transload-local")
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let runtime = Kept(Some(runtime));
        let listener = {
            let _inside = handle.enter();
            bind()?
        };
        Ok(Self {
            listener,
            handle,
            _runtime: runtime,
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
        let refused = Threads::start_with(|| Err(io::ErrorKind::AddrInUse.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(Threads::start().unwrap());
    }
}
