//! What users were promised: to hear when nothing touches their blocks any more.

use std::mem::ManuallyDrop;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Driver;
use crate::agent::flows::Touching;
use crate::agent::request::Keeper;
use crate::quic::CloseCode;

/// Somebody waits for the end of a lease or a job.
#[derive(Debug)]
pub(super) struct Promise<T> {
    /// Nothing once they have been told.
    end: Option<oneshot::Sender<T>>,
    keeper: Option<Keeper>,
}

impl<T> Promise<T> {
    pub(super) fn new(end: oneshot::Sender<T>, keeper: Option<Keeper>) -> Self {
        let end = Some(end);
        Self { end, keeper }
    }

    /// It has ended, and nothing touches its blocks any more.
    pub(super) fn keep(mut self, end: T) {
        drop(self.keeper.take());
        self.tell(end);
    }

    /// It has failed, and its blocks may still be touched: its keeper stays.
    pub(super) fn tell(&mut self, end: T) {
        if let Some(waiting) = self.end.take() {
            // Whoever waited may be gone.
            let _ = waiting.send(end);
        }
    }
}

impl Drop for Driver {
    /// By itself the driver ends only when nothing is under way, and then this has nothing to do. But the
    /// threads that move bytes do not end with it, were it to panic.
    fn drop(&mut self) {
        // Peers must not wait for answers that nobody gives.
        self.endpoints
            .hang_up(CloseCode::SHUTTING_DOWN, "the agent has stopped");
        if std::thread::panicking() {
            tracing::error!("the agent has stopped: its driver has panicked");
        }
        let under_way = self.under_way.drain();
        let mut touching: Vec<_> = under_way.map(|(_, under)| under.touching()).collect();
        touching.extend(self.fencing.drain().map(|(_, touching)| touching));
        let promises = (
            std::mem::take(&mut self.leases),
            std::mem::take(&mut self.jobs),
        );
        abandon(touching, promises);
    }
}

/// Stops whatever touches blocks, and breaks the promises, which tells those who wait that the agent is
/// gone, only when nothing does any more. Where that cannot be waited for, nobody is told.
fn abandon<P: Send + 'static>(touching: Vec<Touching>, promises: P) {
    if touching.is_empty() {
        return;
    }
    touching.iter().for_each(Touching::stop);
    // So that they are leaked where this is not run to its end.
    let promises = ManuallyDrop::new(promises);
    let breaking = async move {
        for touching in touching {
            touching.quiet().await;
        }
        drop(ManuallyDrop::into_inner(promises));
    };
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(breaking);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::data::{Landing, RouteBytes};
    use crate::plan::RouteStream;

    fn landing() -> Landing {
        let nothing = RouteStream { sections: vec![] };
        Landing::new(RouteBytes::new(nothing, |_| None).unwrap())
    }

    #[tokio::test]
    async fn are_not_broken_while_blocks_are_touched() {
        let landings = [landing(), landing()];
        let inside = landings.each_ref().map(|landing| landing.enter().unwrap());
        let (sender, mut end) = oneshot::channel::<()>();
        let keeper: Keeper = Arc::new(());
        let kept = Arc::downgrade(&keeper);
        let promise = Promise::new(sender, Some(keeper));
        abandon(landings.map(Touching::from).into(), promise);
        for inside in inside {
            let interrupted = inside.unless_raised(std::future::pending::<()>());
            assert_eq!(interrupted.await, None, "all are told to stop at once");
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(end.try_recv(), Err(TryRecvError::Empty));
            assert!(kept.upgrade().is_some());
        }
        end.await.unwrap_err();
        assert!(kept.upgrade().is_none());
    }

    #[test]
    fn are_never_broken_where_nobody_can_wait() {
        let landing = landing();
        let _inside = landing.enter().unwrap();
        let (sender, mut end) = oneshot::channel::<()>();
        abandon(vec![landing.into()], Promise::new(sender, None));
        assert_eq!(end.try_recv(), Err(TryRecvError::Empty));
    }
}
