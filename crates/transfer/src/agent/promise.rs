//! Promises to users, which report the end of a lease or a transfer once nothing touches its blocks any more, or once it
//! is known that memory does not finish its work on them.

use tokio::sync::{mpsc, oneshot};

use super::error::AgentGone;
use super::request::Keeper;
use transload_wire::{JobId, LeaseKey};

/// The driver's half of a promise.
#[derive(Debug)]
pub(super) struct Promise<T> {
    /// Dropped first, so that it is gone by the time a broken promise is noticed.
    keeper: Option<Keeper>,
    /// `None` once the end was reported.
    end: Option<oneshot::Sender<T>>,
}

/// The user's half of a promise. Dropping it before the end cancels the lease or transfer.
#[derive(Debug)]
pub(super) struct CancelOnDrop<T> {
    end: oneshot::Receiver<T>,
    of: Handle,
    dropped: mpsc::UnboundedSender<Handle>,
}

/// The object that a user's handle stands for. Dropped handles are reported by this, since a destructor cannot wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handle {
    Lease(LeaseKey),
    Job(JobId),
    /// The agent itself, reported with its last handle.
    Agent,
}

/// Makes a promise to report the end of a lease or a job, and to drop its keeper then.
pub(super) fn promise<T>(
    of: Handle,
    keeper: Option<Keeper>,
    dropped: mpsc::UnboundedSender<Handle>,
) -> (Promise<T>, CancelOnDrop<T>) {
    let (sender, end) = oneshot::channel();
    let promise = Promise { end: Some(sender), keeper };
    (promise, CancelOnDrop { end, of, dropped })
}

impl<T> Promise<T> {
    /// Reports the end, when nothing touches the blocks any more.
    pub(super) fn keep(mut self, end: T) {
        drop(self.keeper.take());
        self.tell(end);
    }

    /// Reports the end although the blocks may still be touched, so the keeper is kept.
    pub(super) fn tell(&mut self, end: T) {
        if let Some(waiting) = self.end.take() {
            // The user may have stopped waiting.
            let _ = waiting.send(end);
        }
    }

    /// Returns whether the end was reported while the blocks could still be touched.
    pub(super) fn is_told(&self) -> bool {
        self.end.is_none()
    }
}

impl<T> CancelOnDrop<T> {
    /// Waits for the end. Dropping the future cancels, too.
    pub(super) async fn end(mut self) -> Result<T, AgentGone> {
        (&mut self.end).await.map_err(|_| AgentGone)
    }
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        if !self.end.is_terminated() && self.end.try_recv().is_err() {
            // An error means that the agent is gone, and all its leases and transfers with it.
            let _ = self.dropped.send(self.of);
        }
    }
}
