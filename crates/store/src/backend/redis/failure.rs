//! Failures of an exchange with the server.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::error::StoreError;

/// Describes why an exchange failed. After any failure except [`Refused`](Self::Refused) the connection cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The connection was closed. A new one may work.
    #[error("the connection broke: {0}")]
    Broken(#[source] RedisError),
    #[error("{0}")]
    Other(#[source] RedisError),
    #[error("the server did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the server answered {0}; is it a Redis server?")]
    Garbage(String),
    #[error("the server refused: {0}")]
    Refused(String),
    /// The server is of a kind that cannot hold a store: a cluster node or a Sentinel.
    #[error("it is {0}")]
    Kind(&'static str),
    #[error("cannot read certificates from {file}: {why}")]
    Authorities { file: String, why: String },
}

impl Failure {
    pub(super) fn from(error: RedisError, limit: Duration) -> Self {
        match error.kind() {
            _ if error.is_timeout() => Self::TimedOut(limit),
            _ if error.is_connection_dropped() => Self::Broken(error),
            ErrorKind::Parse => Self::Garbage(format!("data that cannot be parsed ({error})")),
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                Self::Refused(match (error.code(), error.detail()) {
                    (Some(code), Some(detail)) => format!("{code} {detail}"),
                    _ => error.to_string(),
                })
            }
            _ => Self::Other(error),
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    pub(super) fn during(self, action: impl Into<String>) -> StoreError {
        StoreError::remote(action, self)
    }
}
