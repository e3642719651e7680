//! Work away from the driver, since how long it takes a peer's layout decides, and everybody waits for the driver:
//! compiling plans, and binding them to memory.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

use super::event::DataEvent;

/// How much is worked on at a time: the rest waits for its turn. Most takes some microseconds.
const TURNS: usize = 2;

/// Does one thing after the other on threads that may block.
#[derive(Debug)]
pub(super) struct Background {
    pub(super) turns: Arc<Semaphore>,
    events: mpsc::UnboundedSender<DataEvent>,
}

impl Background {
    pub(super) fn new(events: mpsc::UnboundedSender<DataEvent>) -> Self {
        Self { turns: Arc::new(Semaphore::new(TURNS)), events }
    }

    /// Works on something when it is its turn, and tells what came of it. Aborted, it does not begin any more.
    pub(super) fn run<T: Send + 'static, E: From<String> + Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
        event: impl FnOnce(Result<T, E>) -> DataEvent + Send + 'static,
    ) -> JoinHandle<()> {
        let (events, turns) = (self.events.clone(), self.turns.clone());
        tokio::spawn(async move {
            // The semaphore is never closed.
            let turn = turns.acquire_owned().await.ok();
            let done = spawn_blocking(move || {
                // Until it is done, whatever becomes of who wanted it.
                let _turn = turn;
                work()
            });
            let done = done.await;
            let done = done.unwrap_or_else(|panicked| Err(panicked.to_string().into()));
            // The driver is gone where this fails.
            let _ = events.send(event(done));
        })
    }
}
