//! What other ways of moving bytes reach on this machine, to set our own figures against.
//!
//! Each sends bytes between two threads over loopback, with the certificates and the mutual
//! authentication that agents use.

mod raw_quic;
mod tcp_rustls;

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use transload::transfer::identity::AuthorityError;
use transload::transfer::ids::NameError;
use transload::transfer::transport::quic::{BindError, ConnectError, ConnectionLost, StreamError};

pub(super) use raw_quic::raw_quic;
pub(super) use tcp_rustls::tcp_rustls;

use crate::failure::{Failure, chain};

/// Bytes of each write: enough that its length no longer matters.
const WRITE: usize = 1 << 20;

/// The memory that senders walk through and receivers copy into, round and round.
const REGION: usize = 64 << 20;

/// Why a baseline could not be measured.
#[derive(Debug, Error)]
pub(super) enum BaselineError {
    #[error("making certificates")]
    Authority(#[from] AuthorityError),
    #[error("making certificates")]
    Name(#[from] NameError),
    #[error("the socket or thread")]
    Io(#[from] std::io::Error),
    #[error("TLS")]
    Tls(#[from] rustls::Error),
    #[error("the QUIC endpoints")]
    Bind(#[from] BindError),
    #[error("connecting over QUIC")]
    Connect(#[from] ConnectError),
    #[error("the QUIC connection")]
    Lost(#[from] ConnectionLost),
    #[error("the QUIC stream")]
    Stream(#[from] StreamError),
    #[error("a thread of the measurement ended early")]
    Ended,
    #[error("{actual} of {expected} bytes arrived")]
    Missing { expected: u64, actual: u64 },
}

impl From<BaselineError> for Failure {
    fn from(error: BaselineError) -> Self {
        Self::no(
            format!("the limit could not be measured: {}", chain(&error)),
            "is there a firewall on the loopback interface?",
        )
    }
}

/// 10^9 bytes a second, if all have arrived.
fn speed(expected: u64, actual: u64, elapsed: Duration) -> Result<f64, BaselineError> {
    match actual == expected {
        true => Ok(crate::show::number::gigabytes_per_second(actual, elapsed)),
        false => Err(BaselineError::Missing { expected, actual }),
    }
}

/// The memory to send, in pages that are there.
fn source() -> Bytes {
    vec![1; REGION].into()
}

/// The writes that make up `bytes`.
fn writes(source: Bytes, bytes: u64) -> impl Iterator<Item = Bytes> + Send {
    let region = REGION as u64;
    (0..bytes.div_ceil(WRITE as u64)).map(move |i| {
        let start = i * WRITE as u64;
        let len = (bytes - start).min(WRITE as u64) as usize;
        let at = (start % region) as usize;
        source.slice(at..at + len)
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
            memory: vec![1; REGION],
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

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = (REGION + 3 * WRITE + 5) as u64;

    #[test]
    fn writes_add_up() {
        let lens = writes(source(), BYTES).map(|piece| piece.len() as u64);
        assert_eq!(lens.sum::<u64>(), BYTES);
    }

    #[test]
    fn bytes_arrive() {
        assert!(tcp_rustls(1 << 20).expect("TCP") > 0.0);
        let runtime = crate::commands::engines::runtime().expect("a runtime");
        assert!(runtime.block_on(raw_quic(1 << 20)).expect("QUIC") > 0.0);
    }
}
