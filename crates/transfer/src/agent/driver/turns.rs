//! Work away from the driver, since how long it takes a peer's layout decides, and everybody waits for the driver:
//! compiling plans, and binding them to memory.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Driver;
use crate::agent::event::Event;
use crate::wire::PlanAsk;

/// How much is worked on at a time: the rest waits for its turn. Most takes some microseconds.
const TURNS: usize = 2;

/// Who takes turns.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) free: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            free: Arc::new(Semaphore::new(TURNS)),
        }
    }
}

impl Driver {
    /// Works on something when it is its turn, and hears what came of it. Aborted, it does not begin any more.
    pub(super) fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
        event: impl FnOnce(Result<T, String>) -> Event + Send + 'static,
    ) -> JoinHandle<()> {
        let (moved, free) = (self.moved.clone(), self.turns.free.clone());
        self.endpoints.spawn_control(async move {
            // The semaphore is never closed.
            let turn = free.acquire_owned().await.ok();
            let done = spawn_blocking(move || {
                // Until it is done, whatever becomes of who wanted it.
                let _turn = turn;
                work()
            });
            let done = done.await;
            let done = done.unwrap_or_else(|panicked| Err(panicked.to_string()));
            // The driver is gone where this fails.
            let _ = moved.send(event(done));
        })
    }

    /// Compiles what the machine asks for.
    pub(super) fn compile(&mut self, ask: PlanAsk) {
        self.counters.plan_wanted();
        let ranks = self.memories.keys().copied().collect();
        match self.machine.planner().compiling(&ask, ranks) {
            Ok(compiling) => drop(self.in_turn(compiling, |plan| Event::Compiled { ask, plan })),
            Err(why) => {
                let now = self.now();
                self.machine.compiled(now, &ask, Err(why));
            }
        }
    }
}
