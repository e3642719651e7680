//! What can go wrong with streams, on either side of them.

use thiserror::Error;

use super::{operation::RegionError, stop};
use crate::{
    copy::StreamError,
    quic::{self, StreamCode},
};

/// What a path says of its failure.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

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
pub enum ReceiveError {
    /// It announces bytes that the route does not have.
    #[error("{length} bytes at offset {offset} of a route of {bytes} bytes")]
    Outside {
        /// Offset announced.
        offset: u64,
        /// Length announced.
        length: u64,
        /// Bytes of the route.
        bytes: u64,
    },
    /// It ended too early.
    #[error("the stream ended after {found} of {planned} bytes")]
    TooShort {
        /// Bytes announced.
        planned: u64,
        /// Bytes that came.
        found: u64,
    },
    /// Something came after its trailer.
    #[error("the stream went on after its {planned} bytes")]
    TooLong {
        /// Bytes announced.
        planned: u64,
    },
    /// Header and trailer do not agree.
    #[error("the stream announced {planned} bytes, and then said it had {found}")]
    Length {
        /// Bytes announced by the header.
        planned: u64,
        /// Bytes as the trailer has it.
        found: u64,
    },
    /// Other bytes arrived than were sent.
    #[error("CRC32C {seen:08x}, {sent:08x} was sent")]
    Checksum {
        /// Of the bytes sent, from the trailer.
        sent: u32,
        /// Of the bytes that arrived.
        seen: u32,
    },
    /// The lane failed it.
    #[error(transparent)]
    Lane(#[from] quic::StreamError),
    /// Another path failed it.
    #[error("{0}")]
    Path(#[source] BoxError),
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
            Self::Memory(_) => stop::FENCED,
            _ => stop::MALFORMED,
        }
    }
}
