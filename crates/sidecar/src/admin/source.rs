//! The parts of the process that the admin address shows.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::observe::{Observer, ServerStatus};

/// The data behind the admin address.
pub trait Source: Send + Sync + 'static {
    /// Returns the record of requests.
    fn observer(&self) -> &Observer;

    /// Returns the current status of all known servers.
    fn servers(&self) -> Vec<ServerStatus>;

    /// Returns whether requests can be served: a decode server accepts connections, and the process is not shutting
    /// down.
    fn ready(&self) -> impl Future<Output = bool> + Send;

    /// Sends `GET path` to a server. Returns `None` unless it answers 200 with at most `limit` bytes within this time.
    fn get(
        &self,
        server: &ServerStatus,
        path: &str,
        limit: usize,
        within: Duration,
    ) -> impl Future<Output = Option<Bytes>> + Send;
}
