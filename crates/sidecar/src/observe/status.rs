//! The document of `/status`.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::{FailureKind, Inner, Outcome, Path, Transfers};
use crate::Role;
use crate::target::ServerUrl;

/// The document of `/status`, `transload.status/1`. Times are in milliseconds.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The schema's name, `transload.status/1`.
    pub schema: &'static str,
    /// The mode, `sidecar` or `proxy`.
    pub mode: &'static str,
    /// The binary's version.
    pub version: &'static str,
    /// The time since this process started, in seconds.
    pub uptime_seconds: u64,
    /// The known servers.
    pub servers: Vec<ServerStatus>,
    /// The number of ended requests of P/D routes, by path.
    pub requests: Requests,
    /// The number of requests in flight, including those that are not listed.
    pub in_flight_total: usize,
    /// Requests in flight, newest first; at most [`LIVE`](super::LIVE).
    pub in_flight: Vec<Row>,
    /// Ended requests, latest first; at most [`RECENT`](super::RECENT).
    pub recent: Vec<Row>,
    /// Percentiles over `recent`.
    pub latency: Latency,
    /// The number of server failures by role and kind, without those that are 0.
    pub failures: Vec<Failures>,
    /// The totals of our connector from the servers' own metrics; null if no server has them.
    pub transfers: Option<Transfers>,
}

/// The status of one server.
#[derive(Debug, Clone, Serialize)]
pub struct ServerStatus {
    /// The server's URL.
    #[serde(serialize_with = "url")]
    pub url: ServerUrl,
    /// The server's role.
    #[serde(serialize_with = "role")]
    pub role: Role,
    /// The server's state.
    pub state: ServerState,
    /// The number of requests in flight at the server.
    pub in_flight: u64,
    /// The number of requests sent to the server.
    pub requests: u64,
    /// The number of requests that it failed.
    pub failures: u64,
    /// Used by decode servers only: the prefill servers that it is kept apart from, since it fails with their blocks.
    #[serde(serialize_with = "urls")]
    pub misfits: Vec<ServerUrl>,
}

/// The state of a server, which decides whether it gets requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// The server gets requests.
    Up,
    /// The server gets no requests, since probes fail.
    Down,
    /// The server gets no further requests, since it is no longer named; requests in flight complete.
    Draining,
    /// The server gets no requests for a while after several consecutive failures: its circuit breaker is open.
    Open,
}

/// The number of ended requests, by path.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Requests {
    pub disaggregated: u64,
    pub decode_only: u64,
    pub fallback: u64,
    pub rejected: u64,
}

/// The number of failures of one kind, over all servers of a role.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Failures {
    #[serde(serialize_with = "role")]
    pub role: Role,
    pub kind: FailureKind,
    pub count: u64,
}

/// One request. Stages that it has not reached, or does not have, are null.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The id under which its servers see the request; it is our own.
    pub id: String,
    /// The request's path; null until it is decided.
    pub path: Option<Path>,
    /// The prefill server; the last one if several were asked.
    pub prefill: Option<String>,
    /// The decode server; the last one if several were asked.
    pub decode: Option<String>,
    /// The outcome; null while the request is in flight.
    pub outcome: Option<Outcome>,
    /// The status of the client's answer.
    pub status: Option<u16>,
    /// The last failure of a server.
    pub failure: Option<Failure>,
    /// The time since the request's head was accepted.
    pub age_ms: f64,
    /// The time from the head until a server was first asked.
    pub queue_ms: Option<f64>,
    /// The time from the head until a prefill server was first asked; later than `queue_ms` if a decode server was
    /// asked before.
    pub prefill_at_ms: Option<f64>,
    /// The time from then to the prefill's answer or failure, including all servers that were tried.
    pub prefill_ms: Option<f64>,
    /// The time from the prefill's answer to the first byte from the decode server: the KV cache's transfer and the
    /// first token's step, which cannot be told apart from here. Null if the decode server computed the prompt itself.
    pub transfer_ms: Option<f64>,
    /// The time from the head to the first byte of the answer's body.
    pub first_token_ms: Option<f64>,
    /// The time from the head to the end, or until now.
    pub total_ms: f64,
    /// The number of tokens in the prompt, as a server counted them.
    pub prompt_tokens: Option<u64>,
    /// The number of prompt tokens that the prefill server had cached.
    pub cached_tokens: Option<u64>,
    /// The number of bytes of the answer's body that were sent to the client.
    pub answer_bytes: u64,
}

/// A failure of a server.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Failure {
    #[serde(serialize_with = "role")]
    pub role: Role,
    pub kind: FailureKind,
}

/// Percentiles over recent successful requests.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub prefill_ms: Option<Quantiles>,
    pub first_token_ms: Option<Quantiles>,
    pub total_ms: Option<Quantiles>,
}

/// Percentiles by nearest rank, so each is one of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    /// The number of measurements.
    pub count: usize,
}

pub(super) struct Shown {
    pub(super) servers: Vec<ServerStatus>,
    pub(super) transfers: Option<Transfers>,
    pub(super) total: usize,
    pub(super) live: Vec<Row>,
    pub(super) recent: Vec<Row>,
}

impl Status {
    pub(super) fn new(inner: &Inner, shown: Shown, now: Instant) -> Self {
        let requests = |path| inner.metrics.requests(path);
        let failures =
            [Role::Prefill, Role::Decode].into_iter().flat_map(|role| FailureKind::ALL.map(|kind| (role, kind)));
        Self {
            schema: "transload.status/1",
            mode: inner.mode,
            version: inner.version,
            uptime_seconds: now.saturating_duration_since(inner.started).as_secs(),
            servers: shown.servers,
            requests: Requests {
                disaggregated: requests(Path::Disaggregated),
                decode_only: requests(Path::DecodeOnly),
                fallback: requests(Path::Fallback),
                rejected: requests(Path::Rejected),
            },
            in_flight_total: shown.total,
            in_flight: shown.live,
            latency: Latency::of(&shown.recent),
            recent: shown.recent,
            failures: failures
                .map(|(role, kind)| Failures { role, kind, count: inner.metrics.failures(role, kind) })
                .filter(|failures| failures.count > 0)
                .collect(),
            transfers: shown.transfers,
        }
    }
}

impl Latency {
    fn of(rows: &[Row]) -> Self {
        let ok = |figure: fn(&Row) -> Option<f64>| {
            let good = rows.iter().filter(|row| row.outcome == Some(Outcome::Ok));
            Quantiles::of(good.filter_map(figure).collect())
        };
        Self {
            prefill_ms: ok(|row| row.prefill_ms.filter(|_| row.path == Some(Path::Disaggregated))),
            first_token_ms: ok(|row| row.first_token_ms),
            total_ms: ok(|row| Some(row.total_ms)),
        }
    }
}

impl Quantiles {
    pub(super) fn of(mut measurements: Vec<f64>) -> Option<Self> {
        measurements.sort_unstable_by(f64::total_cmp);
        let count = measurements.len();
        let rank = |percent: usize| {
            let rank = (count * percent).div_ceil(100);
            measurements.get(rank.saturating_sub(1)).copied()
        };
        Some(Self { p50: rank(50)?, p90: rank(90)?, p99: rank(99)?, count })
    }
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

fn role<S: Serializer>(role: &Role, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(role.name())
}

fn urls<S: Serializer>(urls: &[ServerUrl], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(urls.iter().map(ToString::to_string))
}

fn url<S: Serializer>(url: &ServerUrl, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(url)
}
