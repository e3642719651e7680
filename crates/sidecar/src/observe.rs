//! The record of requests: recent ones with their stages, histograms and counters.
//!
//! Each request of a P/D route has one [`Record`], which gets its events and ends with an [`Outcome`]. Nothing recorded
//! here is a client's text: ids are our own, and servers are targets that were parsed and allowed.

mod metrics;
mod record;
mod status;
#[cfg(test)]
mod tests;
mod transfers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

use crate::Role;
use metrics::Metrics;
pub use record::Record;
use record::Shared;
pub(crate) use status::Status;
pub use status::{ServerState, ServerStatus};
pub(crate) use transfers::Transfers;

pub(crate) const RECENT: usize = 200;

/// The number of requests in flight that are listed. Further ones are only counted, and are listed once they end.
pub(crate) const LIVE: usize = 256;

/// The record of all requests. Clones share it.
#[derive(Debug, Clone)]
pub struct Observer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mode: &'static str,
    version: &'static str,
    started: Instant,
    metrics: Metrics,
    requests: Mutex<Kept>,
}

/// The requests that are listed: a bounded number of those in flight, and the last ones that have ended.
#[derive(Debug, Default)]
struct Kept {
    next: u64,
    in_flight: usize,
    live: BTreeMap<u64, Shared>,
    recent: VecDeque<Shared>,
}

impl Observer {
    /// Creates an empty record. `mode` is `sidecar` or `proxy`, `version` is that of the binary.
    #[must_use]
    pub fn new(mode: &'static str, version: &'static str, now: Instant) -> Self {
        Self(Arc::new(Inner {
            mode,
            version,
            started: now,
            metrics: Metrics::new(version),
            requests: Mutex::default(),
        }))
    }

    /// Starts the record of a request of a P/D route whose head was accepted at `now`. `id` is the one that we give the
    /// request and send to both servers.
    #[must_use]
    pub fn begin(&self, id: &str, now: Instant) -> Record {
        let shared = record::shared(id, now);
        let mut kept = self.0.kept();
        let number = kept.next;
        kept.next += 1;
        kept.in_flight += 1;
        if kept.live.len() < LIVE {
            kept.live.insert(number, shared.clone());
        }
        drop(kept);
        Record::new(self.0.clone(), number, shared)
    }

    /// Counts a failure of a server for a request outside the P/D routes.
    pub fn failure(&self, role: Role, kind: FailureKind) {
        self.0.metrics.failure(role, kind);
    }

    /// Returns all metrics in Prometheus' text format, version 0.0.4.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.0.metrics.text()
    }

    /// Returns the document of `/status` at `now`. The caller passes the state of the servers and the sums of their own
    /// metrics.
    #[must_use]
    pub fn status(&self, servers: Vec<ServerStatus>, transfers: Option<Transfers>, now: Instant) -> Status {
        let inner = &*self.0;
        let kept = inner.kept();
        let total = kept.in_flight;
        let live: Vec<_> = kept.live.values().rev().cloned().collect();
        let recent: Vec<_> = kept.recent.iter().rev().cloned().collect();
        drop(kept);
        let rows = |of: &[Shared]| of.iter().map(|one| record::row(one, now)).collect();
        Status::new(inner, status::Shown { servers, transfers, total, live: rows(&live), recent: rows(&recent) }, now)
    }
}

impl Inner {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, number: u64, shared: Shared) {
        let mut kept = self.kept();
        kept.in_flight -= 1;
        kept.live.remove(&number);
        let oldest = (kept.recent.len() == RECENT).then(|| kept.recent.pop_front()).flatten();
        kept.recent.push_back(shared);
        drop(kept);
        drop(oldest); // freed outside the lock
    }
}

/// The way in which a request was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// A prefill server computed the prompt and a decode server the answer.
    Disaggregated,
    /// A decode server computed both, as intended.
    DecodeOnly,
    /// A decode server computed both, since the prefill failed.
    Fallback,
    /// No server was asked, or the prefill server refused the request.
    Rejected,
}

impl Path {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::Disaggregated, Self::DecodeOnly, Self::Fallback, Self::Rejected];

    /// Returns the name in metrics and in `/status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disaggregated => "disaggregated",
            Self::DecodeOnly => "decode_only",
            Self::Fallback => "fallback",
            Self::Rejected => "rejected",
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client got a server's complete answer, with a status below 400.
    Ok,
    /// The client got a server's complete answer, with a status of 400 or above.
    ErrorStatus,
    /// The request was refused for its content or its client's number of requests: the client got an error of ours, and
    /// no server was asked.
    Rejected,
    /// No server answered, or the answer broke off. The client got an error of ours, or its connection was broken.
    UpstreamFailed,
    /// The client left before the end.
    ClientLeft,
    /// The request was aborted at the end of draining.
    Drained,
}

impl Outcome {
    /// Returns the name in `/status` and in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ErrorStatus => "error_status",
            Self::Rejected => "rejected",
            Self::UpstreamFailed => "upstream_failed",
            Self::ClientLeft => "client_left",
            Self::Drained => "drained",
        }
    }
}

/// The way in which a server failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The server accepted no connection.
    Refused,
    /// The server was silent for too long.
    Timeout,
    /// The connection broke, or the answer was not valid HTTP.
    Broken,
    /// The server answered with an error status of its own.
    Status,
    /// The server answered with success, but its answer was not usable.
    Invalid,
    /// A decode server failed with a prefill server's blocks and answered without them. This is counted under the
    /// prefill server's role, and held against the pair.
    Misfit,
}

impl FailureKind {
    /// All variants.
    pub const ALL: [Self; 6] = [Self::Refused, Self::Timeout, Self::Broken, Self::Status, Self::Invalid, Self::Misfit];

    /// Returns the name in metrics and in `/status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Status => "status",
            Self::Invalid => "invalid",
            Self::Misfit => "misfit",
        }
    }
}
