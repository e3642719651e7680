//! What users are promised: to hear of the end of a lease or a transfer once nothing touches its blocks any more, or once
//! it is known that memory is not done with them.

use tokio::sync::{mpsc, oneshot};

use super::error::AgentGone;
use super::request::Keeper;
use transload_wire::{JobId, LeaseKey};

/// The driver's half of a promise.
#[derive(Debug)]
pub(super) struct Promise<T> {
    /// Goes first, so that whoever hears that the promise is broken does not find it.
    keeper: Option<Keeper>,
    /// `None` once the end is told.
    end: Option<oneshot::Sender<T>>,
}

/// The user's half of a promise. Dropping it before the end is told cancels what it is of.
#[derive(Debug)]
pub(super) struct CancelOnDrop<T> {
    end: oneshot::Receiver<T>,
    of: Handle,
    dropped: mpsc::UnboundedSender<Handle>,
}

/// What users hold handles of. One that is dropped is told of where nobody can wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handle {
    Lease(LeaseKey),
    Job(JobId),
    /// The last one of the agent.
    Agent,
}

/// Promises to tell the end of a lease or a job, and to let go of its keeper then.
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
    /// Tells the end: nothing touches the blocks any more.
    pub(super) fn keep(mut self, end: T) {
        drop(self.keeper.take());
        self.tell(end);
    }

    /// Tells the end though the blocks may still be touched: their keeper stays.
    pub(super) fn tell(&mut self, end: T) {
        if let Some(waiting) = self.end.take() {
            // Whoever waited may be gone.
            let _ = waiting.send(end);
        }
    }

    /// Whether the end was told before nothing touched the blocks any more.
    pub(super) fn is_told(&self) -> bool {
        self.end.is_none()
    }
}

impl<T> CancelOnDrop<T> {
    /// Waits for the end. Dropping the future cancels too.
    pub(super) async fn end(mut self) -> Result<T, AgentGone> {
        (&mut self.end).await.map_err(|_| AgentGone)
    }
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        if !self.end.is_terminated() && self.end.try_recv().is_err() {
            // The agent is gone where this fails, and all that it has promised with it.
            let _ = self.dropped.send(self.of);
        }
    }
}
