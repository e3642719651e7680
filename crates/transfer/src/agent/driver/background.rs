//! Work outside of the driver's task: compiling plans, and binding them to memory. A peer's layout decides how long
//! that takes, and the driver must not make other peers wait for it.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

use super::event::DataEvent;

/// The number of threads that work at a time; more work waits. Most takes some microseconds.
const TURNS: usize = 2;

/// Runs work on blocking threads, a few pieces at a time, in order.
#[derive(Debug)]
pub(super) struct Background {
    pub(super) turns: Arc<Semaphore>,
    events: mpsc::UnboundedSender<DataEvent>,
}

impl Background {
    pub(super) fn new(events: mpsc::UnboundedSender<DataEvent>) -> Self {
        Self { turns: Arc::new(Semaphore::new(TURNS)), events }
    }

    /// Runs work when it is its turn, and sends the event with its result. If the returned task is aborted, work that
    /// waits does not begin.
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
                // Held until the work is done, even if the task that wanted it is aborted.
                let _turn = turn;
                work()
            });
            let done = done.await;
            let done = done.unwrap_or_else(|panicked| Err(panicked.to_string().into()));
            // An error means that the driver has stopped.
            let _ = events.send(event(done));
        })
    }
}
