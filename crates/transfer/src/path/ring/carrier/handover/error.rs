//! Why handovers fail.

use std::io;

#[cfg(doc)]
use super::connection::Limits;
use crate::path::ring::carrier::memfd::MemfdFault;
use crate::path::ring::carrier::slots::ShapeError;

/// The reason why a handover failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum HandoverError {
    /// No process listens on that name here: the peer is on another host or in another network namespace, or is gone.
    #[error("no process listens on the peer's local socket")]
    NoListener,
    /// The process belongs to another user.
    #[error("the peer runs as user {uid}, who is not allowed")]
    ForeignUser { uid: u32 },
    /// The other side does not hold the token, or the token was used before.
    #[error("the peer does not hold the token of this session")]
    UnknownToken,
    /// A step took longer than [`Limits::timeout`].
    #[error("the peer was too slow")]
    TimedOut,
    /// The peer closed the connection. A listener does that when it rejects a peer.
    #[error("the peer has hung up")]
    PeerGone,
    /// A packet is malformed.
    #[error("the peer's {packet} is malformed")]
    Malformed { packet: &'static str },
    /// The offer has a wrong number of descriptors.
    #[error("the peer's offer came with {found} descriptors instead of {expected}")]
    Descriptors { found: usize, expected: usize },
    /// The further memory that belongs to the ring cannot be used.
    #[error("the peer's memory cannot be used: {0}")]
    More(String),
    /// A limit is exceeded.
    #[error("more than {limit} {what}")]
    TooMuch { what: &'static str, limit: u64 },
    /// The ring's shape is invalid.
    #[error("the peer offers an impossible ring")]
    Shape(#[from] ShapeError),
    /// The memory is invalid.
    #[error(transparent)]
    Memfd(#[from] MemfdFault),
    /// The peer refused the offer, for a reason that it does not state.
    #[error("the peer refused the offer")]
    Refused,
    /// Memory could not be made or mapped.
    #[error("mapping memory failed")]
    Map(#[source] io::Error),
    /// A system call on the socket failed.
    #[error("{doing} failed on the local socket")]
    Socket { doing: &'static str, source: io::Error },
    /// The runtime is being shut down.
    #[error("the runtime is being shut down")]
    ShuttingDown,
}

impl HandoverError {
    pub(super) fn too_much(what: &'static str, limit: u64) -> Self {
        Self::TooMuch { what, limit }
    }
}
