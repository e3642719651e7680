//! The fence of one transfer: who touches its memory, and how to make all of them stop.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Counts those who may touch the memory of one transfer, and turns them out. Clones are one fence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fence {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    raised: AtomicBool,
    inside: AtomicUsize,
    raise: Notify,
    quiet: Notify,
    operations: Mutex<Operations>,
}

/// What memory was asked to do for the transfer and has not done yet.
#[derive(Debug, Default)]
struct Operations {
    count: usize,
    /// When the first of them was begun, or the last one before them was done.
    since: Option<Instant>,
}

/// The right to touch the memory, until it is dropped. Who holds it has to look at the fence before
/// each touch ([`Inside::is_raised`], [`Inside::unless_raised`]), and to let go soon once it is up.
#[derive(Debug)]
pub(crate) struct Inside {
    fence: Fence,
}

impl Fence {
    /// Lets somebody in, unless the fence is up.
    pub(crate) fn enter(&self) -> Option<Inside> {
        // Count first, look then; `quiet` raises first and counts then. One of the two sees the other.
        self.state.inside.fetch_add(1, SeqCst);
        let inside = Inside { fence: self.clone() };
        (!self.is_raised()).then_some(inside)
    }

    /// From now on nobody gets in, and those inside leave. Idempotent.
    pub(crate) fn raise(&self) {
        self.state.raised.store(true, SeqCst);
        self.state.raise.notify_waiters();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.state.raised.load(SeqCst)
    }

    /// Raises the fence, and waits until nobody is inside, which then holds for good.
    pub(crate) async fn quiet(&self) {
        self.raise();
        let State { inside, quiet, .. } = &*self.state;
        until(quiet, || inside.load(SeqCst) == 0).await;
    }

    /// Whether memory has had something to do for so long, and done nothing.
    pub(crate) fn is_stalled(&self, after: Duration) -> bool {
        let operations = self.operations();
        let since = operations.since.filter(|_| operations.count > 0);
        since.is_some_and(|since| since.elapsed() >= after)
    }

    /// Whether memory has something to do.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.operations().count > 0
    }

    fn operations(&self) -> MutexGuard<'_, Operations> {
        let operations = self.state.operations.lock();
        operations.unwrap_or_else(PoisonError::into_inner)
    }

    async fn raised(&self) {
        until(&self.state.raise, || self.is_raised()).await;
    }
}

impl Inside {
    /// Whether it is time to leave.
    pub(crate) fn is_raised(&self) -> bool {
        self.fence.is_raised()
    }

    /// Memory begins something that it is not done with when a call returns.
    pub(super) fn begin_operation(&self) {
        let mut operations = self.fence.operations();
        operations.count += 1;
        if operations.count == 1 {
            operations.since = Some(Instant::now());
        }
    }

    /// It is done with that.
    pub(super) fn end_operation(&self) {
        let mut operations = self.fence.operations();
        operations.count -= 1;
        operations.since = Some(Instant::now());
    }

    /// Runs `work` until it is done (`Some`), or drops it where it stands as soon as the fence is
    /// raised (`None`).
    pub(crate) async fn unless_raised<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.fence.raised() => None,
            done = work => Some(done),
        }
    }
}

impl Clone for Inside {
    /// Lets in somebody who leaves later, also where the fence is up by now.
    fn clone(&self) -> Self {
        self.fence.state.inside.fetch_add(1, SeqCst);
        Self { fence: self.fence.clone() }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.fence.state.inside.fetch_sub(1, SeqCst) == 1 {
            self.fence.state.quiet.notify_waiters();
        }
    }
}

/// Waits until `holds`, which is looked at after each notification.
async fn until(changed: &Notify, holds: impl Fn() -> bool) {
    loop {
        let mut notified = pin!(changed.notified());
        notified.as_mut().enable();
        if holds() {
            return;
        }
        notified.await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn waits_for_those_inside_and_lets_nobody_in() {
        let fence = Fence::default();
        let inside = fence.enter().unwrap();
        let working = tokio::spawn(async move {
            let interrupted = inside.unless_raised(std::future::pending::<()>()).await;
            assert!(interrupted.is_none());
            // Still inside.
            tokio::time::sleep(Duration::from_millis(5)).await;
            inside
        });
        let waiting = tokio::spawn({
            let fence = fence.clone();
            async move { fence.quiet().await }
        });
        let inside = working.await.unwrap();
        assert!(!waiting.is_finished());
        drop(inside);
        waiting.await.unwrap();
        assert!(fence.enter().is_none());
        fence.quiet().await;
    }

    #[test]
    fn memory_that_does_nothing_is_stalled() {
        let fence = Fence::default();
        let inside = fence.enter().unwrap();
        assert!(!fence.is_stalled(Duration::ZERO), "it has nothing to do");
        inside.begin_operation();
        inside.begin_operation();
        inside.end_operation();
        assert!(fence.is_stalled(Duration::ZERO) && fence.waits_for_memory());
        assert!(!fence.is_stalled(Duration::from_secs(3600)));
        inside.end_operation();
        assert!(!fence.is_stalled(Duration::ZERO) && !fence.waits_for_memory());
    }

    #[tokio::test]
    async fn what_is_done_in_time_is_done() {
        let fence = Fence::default();
        let inside = fence.enter().unwrap();
        assert_eq!(inside.unless_raised(async { 7 }).await, Some(7));
        fence.raise();
        assert_eq!(inside.unless_raised(async { 7 }).await, None);
    }
}
