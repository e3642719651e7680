//! Errors of streams, at both ends.

use thiserror::Error;

use super::operation::RegionError;
use crate::quic::{self, StreamCode};
use transload_memory::copy::StreamError;
use transload_plan::codec::Undecodable;

/// An error that a path reports.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a stream could not be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The lane failed.
    #[error(transparent)]
    Lane(#[from] quic::StreamError),
    /// Another path failed, and may not be usable any more.
    #[error("{0}")]
    Path(#[source] BoxError),
    /// The thread of the path that carried it has panicked.
    #[error("a thread of the path has panicked")]
    Panicked,
    /// The memory could not be read. That is a fault of this process, since access was checked before.
    #[error(transparent)]
    Memory(#[from] RegionError),
}

impl From<StreamError> for SendError {
    fn from(error: StreamError) -> Self {
        Self::Memory(error.into())
    }
}

/// The reason why an admitted stream failed.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ReceiveError {
    #[error("{length} bytes at offset {offset} of a route of {bytes} bytes")]
    Outside { offset: u64, length: u64, bytes: u64 },
    #[error("the stream ended after {found} of {planned} bytes")]
    TooShort { planned: u64, found: u64 },
    #[error("the stream went on after its {planned} bytes")]
    TooLong { planned: u64 },
    #[error("the stream announced {planned} bytes, and then said it had {found}")]
    Length { planned: u64, found: u64 },
    #[error("CRC32C {seen:08x}, {sent:08x} was sent")]
    Checksum { sent: u32, seen: u32 },
    /// The lane failed.
    #[error(transparent)]
    Lane(#[from] quic::StreamError),
    /// Another path failed.
    #[error("{0}")]
    Path(#[source] BoxError),
    /// The received bytes are not what the codec produces.
    #[error(transparent)]
    Codec(#[from] Undecodable),
    /// The memory could not be written.
    #[error(transparent)]
    Memory(#[from] RegionError),
}

impl From<StreamError> for ReceiveError {
    fn from(error: StreamError) -> Self {
        Self::Memory(error.into())
    }
}

impl ReceiveError {
    /// Returns the code that the sender gets.
    pub(super) fn code(&self) -> StreamCode {
        match self {
            Self::Memory(_) => FENCED,
            _ => MALFORMED,
        }
    }
}

// Codes with which streams are stopped or reset. Control messages say more; these help to read a packet trace.

/// The receiver has no transfer in progress for this stream.
pub(super) const UNKNOWN: StreamCode = StreamCode(2);
/// The receiver's transfer has failed or was given up.
pub(super) const FENCED: StreamCode = StreamCode(3);
/// Too many streams are in progress.
pub(super) const BUSY: StreamCode = StreamCode(4);
pub(super) const MALFORMED: StreamCode = StreamCode(5);
