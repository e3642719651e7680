//! Why an exchange with the server failed.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::error::StoreError;

/// Why an exchange failed. After any of them but [`Refused`](Self::Refused) the connection is useless.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The connection was closed under us; a new one may do better.
    #[error("the connection broke: {0}")]
    Broken(#[source] RedisError),
    /// The connection could not be made.
    #[error("{0}")]
    Other(#[source] RedisError),
    /// The server did not answer in time.
    #[error("the server did not answer within {0:?}")]
    TimedOut(Duration),
    /// What came is not the protocol of Redis, or not an answer to what was asked.
    #[error("the server answered {0}; is it a Redis server?")]
    Garbage(String),
    /// The server understood and refused.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server is of a kind that cannot hold a store.
    #[error("it is {0}")]
    Kind(&'static str),
    /// The certificate authorities cannot be read.
    #[error("cannot read certificates from {file}: {why}")]
    Authorities {
        /// The file.
        file: String,
        /// What the system or the parser said.
        why: String,
    },
}

impl Failure {
    pub(super) fn from(error: RedisError, limit: Duration) -> Self {
        match error.kind() {
            _ if error.is_timeout() => Self::TimedOut(limit),
            _ if error.is_connection_dropped() => Self::Broken(error),
            ErrorKind::Parse => Self::Garbage(format!("what cannot be read ({error})")),
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                Self::Refused(match (error.code(), error.detail()) {
                    (Some(code), Some(detail)) => format!("{code} {detail}"),
                    _ => error.to_string(),
                })
            }
            _ => Self::Other(error),
        }
    }

    /// Whether a new connection may do better.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    pub(super) fn during(self, action: impl Into<String>) -> StoreError {
        StoreError::remote(action, self)
    }
}
