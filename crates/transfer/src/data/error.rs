//! What can go wrong with streams, on either side of them.

use thiserror::Error;

use super::operation::RegionError;
use crate::quic::{self, StreamCode};
use transload_memory::copy::StreamError;
use transload_plan::codec::Undecodable;

/// What a path says of its failure.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a stream could not be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The lane failed it.
    #[error(transparent)]
    Lane(#[from] quic::StreamError),
    /// Another path failed it, and may be of no more use to others either.
    #[error("{0}")]
    Path(#[source] BoxError),
    /// The thread of the path that carried it has panicked.
    #[error("a thread of the path has panicked")]
    Panicked,
    /// The memory could not be read. A fault of this process: it was proved that it can.
    #[error(transparent)]
    Memory(#[from] RegionError),
}

impl From<StreamError> for SendError {
    fn from(error: StreamError) -> Self {
        Self::Memory(error.into())
    }
}

/// What can be wrong with a stream that was admitted.
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
    /// The lane failed it.
    #[error(transparent)]
    Lane(#[from] quic::StreamError),
    /// Another path failed it.
    #[error("{0}")]
    Path(#[source] BoxError),
    /// What came is not what a codec makes.
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
    /// What the sender is told.
    pub(super) fn code(&self) -> StreamCode {
        match self {
            Self::Memory(_) => FENCED,
            _ => MALFORMED,
        }
    }
}

// Codes that streams are given up with. They tell the other side nothing that control does not say better; they help whoever
// reads a trace.

/// No transfer that is under way here has this stream.
pub(super) const UNKNOWN: StreamCode = StreamCode(2);
/// The receiver's transfer has failed or was given up.
pub(super) const FENCED: StreamCode = StreamCode(3);
/// Too many streams are under way.
pub(super) const BUSY: StreamCode = StreamCode(4);
/// The stream is not as it has to be.
pub(super) const MALFORMED: StreamCode = StreamCode(5);
