//! The document of `/status`.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::{FailureKind, Inner, Outcome, Path, Transfers};
use crate::Role;
use crate::target::ServerUrl;

/// What `/status` says, `transload.status/1`. Times are in milliseconds.
#[derive(Debug, Serialize)]
pub struct Status {
    /// `transload.status/1`.
    pub schema: &'static str,
    /// `sidecar` or `proxy`.
    pub mode: &'static str,
    /// The binary's version.
    pub version: &'static str,
    /// How long this process has been running, in seconds.
    pub uptime_seconds: u64,
    /// The servers known.
    pub servers: Vec<ServerStatus>,
    /// How many requests of P/D routes have ended, by the way they took.
    pub requests: Requests,
    /// How many are in flight, also those beyond the ones shown.
    pub in_flight_total: usize,
    /// Requests in flight, the youngest first; at most [`LIVE`](super::LIVE).
    pub in_flight: Vec<Row>,
    /// Requests that have ended, the last one first; at most [`RECENT`](super::RECENT).
    pub recent: Vec<Row>,
    /// Percentiles over `recent`.
    pub latency: Latency,
    /// How often servers have failed; what has not happened is left out.
    pub failures: Vec<Failures>,
    /// What our connector moved, as far as the servers' own metrics say so; null where none does.
    pub transfers: Option<Transfers>,
}

/// A server as `/status` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct ServerStatus {
    /// Where it is.
    #[serde(serialize_with = "url")]
    pub url: ServerUrl,
    /// What it computes.
    #[serde(serialize_with = "role")]
    pub role: Role,
    /// Whether it is asked.
    pub state: ServerState,
    /// Requests in flight at it.
    pub in_flight: u64,
    /// Requests that it was sent.
    pub requests: u64,
    /// How many of them it failed.
    pub failures: u64,
    /// Prefill servers that a decode server is kept apart from, since it fails with what they give it.
    #[serde(serialize_with = "urls")]
    pub misfits: Vec<ServerUrl>,
}

/// Whether a server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It is.
    Up,
    /// It is not, since probes fail.
    Down,
    /// It is not, since it is going away; what is in flight at it ends.
    Draining,
    /// It is not for a while, since it failed several times in a row: its circuit breaker is open.
    Open,
}

/// How many requests have ended, by the way they took.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Requests {
    pub disaggregated: u64,
    pub decode_only: u64,
    pub fallback: u64,
    pub rejected: u64,
}

/// How often servers of a role failed in one way.
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
    /// The id that its servers see; our own.
    pub id: String,
    /// The way that it took; null until that is decided.
    pub path: Option<Path>,
    /// The prefill server, the last one if several were asked.
    pub prefill: Option<String>,
    /// The decode server, the last one if several were asked.
    pub decode: Option<String>,
    /// How it ended; null while in flight.
    pub outcome: Option<Outcome>,
    /// The status that the client was sent.
    pub status: Option<u16>,
    /// The last failure of a server.
    pub failure: Option<Failure>,
    /// How long ago its head was accepted.
    pub age_ms: f64,
    /// From there until a server was first asked.
    pub queue_ms: Option<f64>,
    /// From there until a prefill server was first asked: later than `queue_ms` where a decode server was asked before.
    pub prefill_at_ms: Option<f64>,
    /// From there to the prefill's answer or failure, with all servers that were tried.
    pub prefill_ms: Option<f64>,
    /// From the prefill's answer to the first byte from the decode server: the KV cache's transfer and the first token's step,
    /// which look the same from here. Null where the decode server computed the prompt itself.
    pub transfer_ms: Option<f64>,
    /// From the head to the first byte of the answer's body.
    pub first_token_ms: Option<f64>,
    /// From the head to the end, or until now.
    pub total_ms: f64,
    /// Tokens of the prompt, as a server counted them.
    pub prompt_tokens: Option<u64>,
    /// How many of them the prefill server had cached.
    pub cached_tokens: Option<u64>,
    /// Bytes of the answer's body that went to the client.
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

/// Percentiles of recent requests that were answered with success.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub prefill_ms: Option<Quantiles>,
    pub first_token_ms: Option<Quantiles>,
    pub total_ms: Option<Quantiles>,
}

/// Percentiles of some measurements, each one of them (nearest rank).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    /// Of how many measurements.
    pub count: usize,
}

/// What a status shows that is no counter.
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

/// Milliseconds, to the microsecond.
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
