//! What memory was asked to do and has not done yet.

use std::{
    future::Future,
    mem::ManuallyDrop,
    pin::Pin,
    task::{Context, Poll, ready},
};

use thiserror::Error;
use tokio::sync::oneshot;

use super::fence::Inside;
use transload_memory::CheckError;
use transload_memory::copy::StreamError;

/// An operation on memory that is under way. It goes on when this is dropped; its transfer's fence waits for it.
#[derive(Debug)]
#[must_use = "it is not done before it says so"]
pub(crate) struct Operation<T> {
    done: oneshot::Receiver<Result<T, RegionError>>,
}

/// The right to carry out an operation, which holds up the fence of its transfer.
///
/// Dropping it instead of [completing](Self::complete) it leaves the fence up for good, and the operation without an end: nobody
/// can tell any more whether the memory is still being touched.
#[derive(Debug)]
pub(crate) struct Completion<T> {
    told: oneshot::Sender<Result<T, RegionError>>,
    inside: ManuallyDrop<Inside>,
}

/// Why memory did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A program needs bytes that are not there.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// It cannot.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A device failed, or is lost.
    #[error("{why}")]
    Device {
        /// What the device said.
        why: Box<str>,
    },
    /// A device has not done in time what it was asked to.
    #[error("{why}")]
    Stalled {
        /// What the device said.
        why: Box<str>,
    },
    /// Whoever was to do it is gone.
    #[error("an operation on the memory was lost")]
    Lost,
}

impl<T> Operation<T> {
    /// An operation of a transfer, and what completes it.
    pub(crate) fn new(inside: &Inside) -> (Self, Completion<T>) {
        let (told, done) = oneshot::channel();
        inside.begin_operation();
        let inside = ManuallyDrop::new(inside.clone());
        (Self { done }, Completion { told, inside })
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T, RegionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let done = Pin::new(&mut self.done).poll(cx);
        done.map(|done| done.map_err(|_| RegionError::Lost)?)
    }
}

impl<T> Completion<T> {
    /// Says that the operation is done: from now on it touches neither the memory nor its buffer.
    pub(crate) fn complete(self, outcome: Result<T, RegionError>) {
        // Whoever waited may have been stopped by the fence.
        let _ = self.told.send(outcome);
        self.inside.end_operation();
        drop(ManuallyDrop::into_inner(self.inside));
    }
}

/// Operations that were submitted together; none where the memory has done it all already. Comes to its end when all are
/// done, or one has failed.
#[derive(Debug, Default)]
#[must_use = "bytes are in their place once all are done"]
pub(crate) struct Operations(Vec<Operation<()>>);

impl Operations {
    pub(crate) fn push(&mut self, operations: impl IntoIterator<Item = Operation<()>>) {
        self.0.extend(operations);
    }

    pub(crate) fn are_done(&self) -> bool {
        self.0.is_empty()
    }
}

impl Future for Operations {
    type Output = Result<(), RegionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(last) = self.0.last_mut() {
            ready!(Pin::new(last).poll(cx))?;
            self.0.pop();
        }
        Poll::Ready(Ok(()))
    }
}
