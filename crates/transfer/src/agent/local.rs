//! The threads of the paths that stay on this host, apart from those that drive sockets of the network.
//!
//! | thread | how many | what it runs | what it waits for |
//! |---|---|---|---|
//! | `transload-local` | one | handovers over the Unix socket, as async tasks | sockets |
//! | the same, blocking | [`COPIES`], [`MAPS`] and [`UNMAPS`] at most | copies out of lent memory; mappings of rings and loans; the end of loans | memory |
//! | `transload-ring` | one for each ring and end | the streams of that ring | the peer |
//!
//! Whatever waits for a peer has a thread of its own, so that nobody else waits for that peer; whatever
//! is queued waits only for work that ends by itself. Mappings never queue behind copies or what is
//! unmapped, and nothing that is queued is inside of a fence.

use std::future::Future;
use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use super::data::{SharedCopy, SharedCopyError};
use crate::transport::local::handover::{Limits, Listener};

/// Most copies out of lent memory at a time, each on one thread. Memory is what they wait for: a few of
/// them are all that it can serve, and more would only make each other slow.
const COPIES: usize = 4;

/// Threads that are left for mappings, each of which takes a few milliseconds.
const MAPS: usize = 2;

/// How many loans are unmapped at a time, each of which takes 20 ms for each GiB that was read in pages of
/// 4 KiB, and there is no hurry.
const UNMAPS: usize = 1;

/// Where this agent meets others of its host.
#[derive(Debug)]
pub(super) struct Local {
    listener: Listener,
    copies: Arc<Semaphore>,
    unmapping: Unmapping,
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
            .max_blocking_threads(COPIES + MAPS + UNMAPS)
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
            copies: Arc::new(Semaphore::new(COPIES)),
            unmapping: Unmapping {
                turns: Arc::new(Semaphore::new(UNMAPS)),
                handle: handle.clone(),
            },
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

    /// Where loans are unmapped that are not needed any more.
    pub(super) fn unmapping(&self) -> Unmapping {
        self.unmapping.clone()
    }

    /// Runs a copy when it is its turn.
    pub(super) fn copy(
        &self,
        copy: SharedCopy,
    ) -> impl Future<Output = Result<(), SharedCopyError>> + Send + 'static {
        let copies = self.copies.clone();
        async move {
            // The semaphore is never closed.
            let _turn = copies.acquire_owned().await.ok();
            // One thread: the routes of other ranks are copied beside it.
            copy.run(1).await
        }
    }
}

/// Unmaps loans away from whoever drops them last: often the driver, which everybody waits for.
#[derive(Clone, Debug)]
pub(super) struct Unmapping {
    turns: Arc<Semaphore>,
    handle: Handle,
}

impl Unmapping {
    /// Drops a loan when it is its turn. Where the threads are gone, or go before that, it is dropped all
    /// the same.
    pub(super) fn discard(self, loan: impl Send + 'static) {
        let Self { turns, handle } = self;
        handle.spawn(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire_owned().await.ok();
            // It only fails with the runtime.
            let _ = spawn_blocking(move || drop(loan)).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{ThreadId, current};
    use std::time::Duration;

    use super::*;

    /// Says which thread has dropped it, once it may.
    struct Loan {
        may: Receiver<()>,
        dropped: Sender<ThreadId>,
    }

    impl Drop for Loan {
        fn drop(&mut self) {
            let _ = self.may.recv();
            let _ = self.dropped.send(current().id());
        }
    }

    #[tokio::test]
    async fn loans_are_dropped_by_others_one_at_a_time_and_all_of_them() {
        const PATIENCE: Duration = Duration::from_secs(10);
        let local = Local::start().unwrap();
        let (dropped, who) = channel();
        let mut allow = Vec::new();
        for _ in 0..3 {
            let (sender, may) = channel();
            let dropped = dropped.clone();
            local.unmapping().discard(Loan { may, dropped });
            allow.push(sender);
        }
        // The first takes long; the others wait for it, and mappings do not.
        let mapped: Vec<_> = (0..MAPS + COPIES)
            .map(|_| local.spawn(async { spawn_blocking(|| ()).await }))
            .collect();
        for mapped in mapped {
            mapped.await.unwrap().unwrap();
        }
        drop(allow.split_off(1));
        assert!(who.try_recv().is_err(), "it is their turn already");

        let late = local.unmapping();
        drop(local);
        drop(allow);
        for _ in 0..3 {
            assert_ne!(who.recv_timeout(PATIENCE).unwrap(), current().id());
        }
        // By whomever, where nobody else is left.
        let (_, may) = channel();
        late.discard(Loan { may, dropped });
        who.recv_timeout(PATIENCE).unwrap();
    }

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
