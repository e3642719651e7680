//! The refusal of a client's bytes.

use http::StatusCode;
use thiserror::Error;

/// A reason why a client's bytes are refused. The connection ends after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The fault and its remedy, without any byte of the client's.
    pub(crate) message: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: StatusCode, message: &'static str) -> Self {
        Self { status, message }
    }

    pub(super) const fn bad(message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}
