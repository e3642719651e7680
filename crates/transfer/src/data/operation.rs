//! Operations that memory has begun and not finished.

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

/// An operation on memory that is in progress. It continues when this is dropped; its transfer's fence waits for it.
#[derive(Debug)]
#[must_use = "it is not done before it says so"]
pub(crate) struct Operation<T> {
    done: oneshot::Receiver<Result<T, RegionError>>,
}

/// The duty to finish an operation, which holds up the fence of its transfer.
///
/// If it is dropped without [`complete`](Self::complete), the fence never becomes quiet: it is unknown then whether the
/// memory is still being touched.
#[derive(Debug)]
pub(crate) struct Completion<T> {
    sender: oneshot::Sender<Result<T, RegionError>>,
    inside: ManuallyDrop<Inside>,
}

/// The reason why memory could not do an operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The program needs bytes outside of the memory.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The bytes cannot be read or written.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A device failed, or is lost.
    #[error("{why}")]
    Device {
        /// The device's error.
        why: Box<str>,
    },
    /// A device did not finish its work in time.
    #[error("{why}")]
    Stalled {
        /// The device's error.
        why: Box<str>,
    },
    /// The operation was dropped before it was done.
    #[error("an operation on the memory was lost")]
    Lost,
}

impl<T> Operation<T> {
    /// Makes an operation of a transfer, and the completion that ends it.
    pub(crate) fn new(inside: &Inside) -> (Self, Completion<T>) {
        let (sender, done) = oneshot::channel();
        inside.begin_operation();
        let inside = ManuallyDrop::new(inside.clone());
        (Self { done }, Completion { sender, inside })
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
    /// Ends the operation: from now on it touches neither the memory nor its buffer.
    pub(crate) fn complete(self, outcome: Result<T, RegionError>) {
        // The fence may have stopped the task that waited.
        let _ = self.sender.send(outcome);
        self.inside.end_operation();
        drop(ManuallyDrop::into_inner(self.inside));
    }
}

/// Operations that were submitted together; empty if the memory has done everything already. As a future it resolves
/// when all are done, or one has failed.
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
