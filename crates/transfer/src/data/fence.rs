//! The fence of a transfer: it counts the users of the transfer's memory, and makes all of them stop.

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

/// Counts the users of one transfer's memory, and makes them leave. Clones refer to the same fence.
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

/// Operations that memory has begun for the transfer and not finished.
#[derive(Debug, Default)]
struct Operations {
    count: usize,
    /// The time when the first of them began, or when an earlier one was finished.
    since: Option<Instant>,
}

/// The permission to touch the memory, until it is dropped. Its holder must check the fence before each access
/// ([`Inside::is_raised`], [`Inside::unless_raised`]), and drop this soon after the fence is raised.
#[derive(Debug)]
pub(crate) struct Inside {
    fence: Fence,
}

impl Fence {
    /// Grants access, unless the fence is raised.
    pub(crate) fn enter(&self) -> Option<Inside> {
        // This counts first and then checks; `quiet` raises first and then counts. So one of the two sees the other.
        self.state.inside.fetch_add(1, SeqCst);
        let inside = Inside { fence: self.clone() };
        (!self.is_raised()).then_some(inside)
    }

    /// Denies access from now on, and tells those inside to leave. Idempotent.
    pub(crate) fn raise(&self) {
        self.state.raised.store(true, SeqCst);
        self.state.raise.notify_waiters();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.state.raised.load(SeqCst)
    }

    /// Raises the fence, and waits until no access is left. Then there never will be any.
    pub(crate) async fn quiet(&self) {
        self.raise();
        let State { inside, quiet, .. } = &*self.state;
        until(quiet, || inside.load(SeqCst) == 0).await;
    }

    /// Returns whether memory has unfinished operations, and has finished none for `after`.
    pub(crate) fn is_stalled(&self, after: Duration) -> bool {
        let operations = self.operations();
        let since = operations.since.filter(|_| operations.count > 0);
        since.is_some_and(|since| since.elapsed() >= after)
    }

    /// Returns whether memory has unfinished operations.
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
    /// Returns whether it is time to leave.
    pub(crate) fn is_raised(&self) -> bool {
        self.fence.is_raised()
    }

    /// Records that memory begins an operation that continues after the call returns.
    pub(super) fn begin_operation(&self) {
        let mut operations = self.fence.operations();
        operations.count += 1;
        if operations.count == 1 {
            operations.since = Some(Instant::now());
        }
    }

    /// Records that an operation is finished.
    pub(super) fn end_operation(&self) {
        let mut operations = self.fence.operations();
        operations.count -= 1;
        operations.since = Some(Instant::now());
    }

    /// Runs `work` until it is done (`Some`), or drops it as soon as the fence is raised (`None`).
    pub(crate) async fn unless_raised<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.fence.raised() => None,
            done = work => Some(done),
        }
    }
}

impl Clone for Inside {
    /// Grants further access, which is possible even if the fence is raised by now.
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

/// Waits until `holds` returns `true`. It is called after each notification.
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
