//! One data stream on a lane, at either end.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use quinn::{ReadError, RecvStream, SendStream, StoppedError, WriteError};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::error::{StreamCode, StreamError};

/// The sending end. Dropping it before [`finish`](Self::finish) resets the stream: the receiver gets
/// the code of a cancelled stream, never a stream that seems complete, and queued memory is released at once.
#[derive(Debug)]
#[must_use = "a stream that is dropped is reset"]
pub struct DataSender {
    stream: ResetOnDrop,
    thread: Handle,
    stall_timeout: Duration,
}

/// A stream that is reset when it is dropped, unless it was delivered. The reset makes quinn release queued memory,
/// even after the connection is lost.
#[derive(Debug)]
struct ResetOnDrop {
    stream: SendStream,
    delivered: bool,
}

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if !self.delivered {
            // Fails only if it was reset before.
            let _ = self.stream.reset(StreamCode::CANCELLED.wire());
        }
    }
}

impl DataSender {
    pub(super) fn new(stream: SendStream, thread: Handle, stall_timeout: Duration) -> Self {
        Self { stream: ResetOnDrop { stream, delivered: false }, thread, stall_timeout }
    }

    /// Queues `bytes` without copying them. Waits while the receiver is behind. The bytes stay referenced until the
    /// receiver's host has them, or the stream is gone.
    ///
    /// Not cancel-safe: part of `bytes` may have been queued. Drop the stream then.
    ///
    /// # Errors
    /// [`StreamError`], after which the stream cannot be used.
    pub async fn send_chunk(&mut self, bytes: Bytes) -> Result<(), StreamError> {
        let mut rest = [bytes];
        loop {
            let write = self.stream.stream.write_chunks(&mut rest);
            if progress(self.stall_timeout, write).await?.chunks > 0 {
                return Ok(());
            }
        }
    }

    /// Sends a copy of `bytes`. For headers and trailers.
    pub async fn send_all(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.send_chunk(Bytes::copy_from_slice(bytes)).await
    }

    /// Ends the stream. The returned future waits until the receiver's host has all of it (its program may not have
    /// read it yet), or resolves to the error; dropping it has no effect on the stream. If it takes longer than the
    /// stall timeout, the stream is reset.
    ///
    /// # Errors
    /// [`StreamError`], if the stream was stopped or lost before.
    pub fn finish(mut self) -> Result<impl Future<Output = Result<(), StreamError>> + use<>, StreamError> {
        self.stream.stream.finish().map_err(|_| StreamError::ClosedHere)?;
        let (tell, told) = oneshot::channel();
        let Self { mut stream, thread, stall_timeout: after } = self;
        // Runs on the lane's own thread, so that queued memory is released when the connection is lost or stalls, even
        // if nothing waits for the acknowledgement.
        thread.spawn(async move {
            let stopped = stream.stream.stopped();
            let result = match timeout(after, stopped).await {
                Ok(Ok(None)) => Ok(()),
                Ok(Ok(Some(code))) => Err(StreamError::Stopped(StreamCode::from_wire(code))),
                Ok(Err(StoppedError::ConnectionLost(lost))) => Err(StreamError::Lost(lost.into())),
                Ok(Err(StoppedError::ZeroRttRejected)) => Err(StreamError::ClosedHere),
                Err(_) => Err(StreamError::Stalled { after }),
            };
            stream.delivered = result.is_ok();
            drop(stream);
            // An error means that the acknowledgement is not wanted.
            let _ = tell.send(result);
        });
        // The sender is dropped only when the endpoints are gone.
        Ok(async { told.await.unwrap_or(Err(StreamError::ClosedHere)) })
    }
}

/// The receiving end. Dropping it tells the sender to stop.
#[derive(Debug)]
pub struct DataReceiver {
    stream: RecvStream,
    stall_timeout: Duration,
}

impl DataReceiver {
    pub(super) fn new(stream: RecvStream, stall_timeout: Duration) -> Self {
        Self { stream, stall_timeout }
    }

    /// Receives the next pieces in order, as many as have arrived and fit into `pieces`. Returns `None` at the end of
    /// the stream. The pieces are views of QUIC's own buffers. Cancel-safe.
    pub async fn recv_chunks(&mut self, pieces: &mut [Bytes]) -> Result<Option<usize>, StreamError> {
        progress(self.stall_timeout, self.stream.read_chunks(pieces)).await
    }

    /// Fills `into`. For headers and trailers. Not cancel-safe.
    ///
    /// # Errors
    /// [`StreamError::Ended`] if the stream has fewer bytes left, or another [`StreamError`].
    pub async fn recv_exact(&mut self, into: &mut [u8]) -> Result<(), StreamError> {
        let mut filled = 0;
        while filled < into.len() {
            let rest = &mut into[filled..];
            let missing = rest.len();
            match progress(self.stall_timeout, self.stream.read(rest)).await? {
                Some(count) => filled += count,
                None => return Err(StreamError::Ended { missing }),
            }
        }
        Ok(())
    }

    /// Tells the sender to stop, with a reason. Bytes that still arrive are dropped.
    pub fn stop(mut self, code: StreamCode) {
        // Fails only if the stream has ended.
        let _ = self.stream.stop(code.wire());
    }
}

/// Waits for an operation that moves at least one byte, for at most `after`.
async fn progress<T, E: Into<StreamError>>(
    after: Duration,
    operation: impl Future<Output = Result<T, E>>,
) -> Result<T, StreamError> {
    match timeout(after, operation).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(StreamError::Stalled { after }),
    }
}

impl From<WriteError> for StreamError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Stopped(StreamCode::from_wire(code)),
            WriteError::ConnectionLost(lost) => Self::Lost(lost.into()),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Self::ClosedHere,
        }
    }
}

impl From<ReadError> for StreamError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(StreamCode::from_wire(code)),
            ReadError::ConnectionLost(lost) => Self::Lost(lost.into()),
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => Self::ClosedHere,
        }
    }
}
