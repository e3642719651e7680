//! What a client is told whose bytes are refused.

use http::StatusCode;
use thiserror::Error;

/// Why a client's bytes are refused. The connection ends after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// The status that the client gets.
    pub(crate) status: StatusCode,
    /// What is wrong and what would be right, without a byte of the client's.
    pub(crate) message: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: StatusCode, message: &'static str) -> Self {
        Self { status, message }
    }

    /// A refusal with status 400.
    pub(super) const fn bad(message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}
