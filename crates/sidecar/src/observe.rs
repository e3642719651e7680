//! What is remembered of requests: recent ones with their stages, histograms and counters.
//!
//! Each request of a P/D route has one [`Record`], which is told what happens and ends with an [`Outcome`]. Nothing in
//! here comes from a client: ids are our own, and servers are the targets that were read and allowed.

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

/// How many requests that have ended are remembered.
pub(crate) const RECENT: usize = 200;

/// How many requests in flight are shown at a time; those beyond it are counted and are remembered once they end.
pub(crate) const LIVE: usize = 256;

/// What is remembered of all requests. Clones share it.
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

/// The requests that are shown: a bounded number of those in flight, and the last that have ended.
#[derive(Debug, Default)]
struct Kept {
    next: u64,
    in_flight: usize,
    live: BTreeMap<u64, Shared>,
    recent: VecDeque<Shared>,
}

impl Observer {
    /// Begins with nothing seen. `mode` is `sidecar` or `proxy`, `version` is the binary's.
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

    /// Begins the record of a request of a P/D route, whose head was accepted at `now`. `id` is our own, as both servers
    /// see it.
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

    /// Counts a failure of a server that belongs to no request of a P/D route.
    pub fn failure(&self, role: Role, kind: FailureKind) {
        self.0.metrics.failure(role, kind);
    }

    /// All metrics in Prometheus' text format, version 0.0.4.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.0.metrics.text()
    }

    /// The document of `/status` as of `now`, with the servers as the caller knows them, and what their own metrics say.
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

    /// Moves a request from those in flight to those that have ended.
    fn ended(&self, number: u64, shared: Shared) {
        let mut kept = self.kept();
        kept.in_flight -= 1;
        kept.live.remove(&number);
        let oldest = (kept.recent.len() == RECENT).then(|| kept.recent.pop_front()).flatten();
        kept.recent.push_back(shared);
        drop(kept);
        drop(oldest); // outside the lock
    }
}

/// Which way a request took.
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
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Disaggregated, Self::DecodeOnly, Self::Fallback, Self::Rejected];

    /// Its name in metrics and in `/status`.
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

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client was sent a server's whole answer, with a status below 400.
    Ok,
    /// The client was sent a server's whole answer, with a status of 400 or above.
    ErrorStatus,
    /// The client was refused for what it sent or how much: an error of ours, and no server was asked.
    Rejected,
    /// No server could answer, or the answer broke off: the client was sent an error of ours or saw the connection break.
    UpstreamFailed,
    /// The client left before the end.
    ClientLeft,
    /// The request was cut at the end of draining.
    Drained,
}

impl Outcome {
    /// Its name in `/status` and in traces.
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

/// How a server failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It took no connection.
    Refused,
    /// It was silent for too long.
    Timeout,
    /// The connection broke, or what came was no HTTP.
    Broken,
    /// It answered with a status that is a failure of the server.
    Status,
    /// It answered with success, but with what cannot be used.
    Invalid,
    /// A decode server failed with what a prefill server gave it, and answered without: counted with the prefill server's role, and
    /// against the two together.
    Misfit,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Refused, Self::Timeout, Self::Broken, Self::Status, Self::Invalid, Self::Misfit];

    /// Its name in metrics and in `/status`.
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
