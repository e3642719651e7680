//! What other ways of moving bytes reach on this machine, to set our own figures against.
//!
//! Each baseline sends the same bytes between two threads over loopback, with the certificates and
//! the mutual authentication that agents use.

mod raw_quic;
mod tcp_rustls;

use std::time::Duration;

use thiserror::Error;
use transload_transfer::{
    identity::AuthorityError,
    ids::NameError,
    quic::{BindError, ConnectError, ConnectionLost, StreamError},
};

pub use raw_quic::{Receiver, raw_quic};
pub use tcp_rustls::tcp_rustls;

/// How fast bytes went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throughput {
    /// Bytes of payload that arrived.
    pub bytes: u64,
    /// From the first write to the last byte's arrival; connecting is not in it.
    pub elapsed: Duration,
}

impl Throughput {
    /// GB/s, with 10^9 bytes to the GB.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64() / 1e9
    }
}

/// Why a baseline could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// Certificates could not be made.
    #[error("making certificates")]
    Authority(#[from] AuthorityError),
    /// Names for them could not.
    #[error("making certificates")]
    Name(#[from] NameError),
    /// A socket or thread failed.
    #[error("the baseline's socket or thread")]
    Io(#[from] std::io::Error),
    /// TLS failed.
    #[error("the baseline's TLS")]
    Tls(#[from] rustls::Error),
    /// QUIC endpoints could not be had.
    #[error("the QUIC endpoints")]
    Bind(#[from] BindError),
    /// QUIC did not connect.
    #[error("the QUIC connection")]
    Connect(#[from] ConnectError),
    /// The QUIC connection broke.
    #[error("the QUIC connection")]
    Lost(#[from] ConnectionLost),
    /// The QUIC stream broke.
    #[error("the QUIC stream")]
    Stream(#[from] StreamError),
    /// A thread or task of the measurement panicked or was cancelled.
    #[error("a thread of the measurement ended early")]
    Ended,
    /// Fewer bytes arrived than were sent.
    #[error("{actual} of {expected} bytes arrived")]
    Missing {
        /// Bytes sent.
        expected: u64,
        /// Bytes that arrived.
        actual: u64,
    },
}

/// The memory that senders walk through and receivers copy into, so that neither side lives in its
/// caches: larger than the last-level cache that one core has to itself.
const REGION: usize = 64 << 20;

/// The memory to send, in pages that are there.
fn source() -> bytes::Bytes {
    (0..REGION)
        .map(|i| (i >> 3) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// The pieces of [`source`] that make up `bytes`, `chunk` at a time, round and round.
fn chunks(
    source: bytes::Bytes,
    bytes: u64,
    chunk: usize,
) -> impl Iterator<Item = bytes::Bytes> + Send {
    let chunk = chunk.clamp(1, REGION);
    let (mut left, mut at) = (bytes, 0);
    std::iter::from_fn(move || {
        let take = chunk.min(usize::try_from(left).unwrap_or(chunk));
        if take == 0 {
            return None;
        }
        if at + take > REGION {
            at = 0;
        }
        let piece = source.slice(at..at + take);
        at += take;
        left -= take as u64;
        Some(piece)
    })
}

/// Memory to copy into, round and round.
struct Sink {
    memory: Vec<u8>,
    at: usize,
}

impl Sink {
    fn new() -> Self {
        // Not zeroed lazily: its pages have to be there before the clock starts.
        Self {
            memory: (0..REGION).map(|_| 1).collect(),
            at: 0,
        }
    }

    fn copy(&mut self, piece: &[u8]) {
        for part in piece.chunks(REGION) {
            if self.at + part.len() > REGION {
                self.at = 0;
            }
            self.memory[self.at..self.at + part.len()].copy_from_slice(part);
            self.at += part.len();
        }
    }
}
