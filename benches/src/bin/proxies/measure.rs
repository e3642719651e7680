//! The cases, and one round of each at one peer.

mod latency;
mod rate;
mod streams;

use std::io;
use std::time::Duration;

use crate::fakes::Fakes;
use crate::peers::{Peer, Running};

pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// The duration of each figure in a round.
    pub(crate) time: Duration,
    pub(crate) streams: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// The time to the first byte of a stream, for sequential requests.
    Added {
        connections: usize,
    },
    /// The time of a whole P/D request, for sequential requests.
    Legs,
    Rate {
        route: Route,
        connections: usize,
    },
    /// Streams with an event each 200 ms.
    Streams,
    /// Streams without events.
    Memory,
}

/// The requests that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Requests of a P/D route, without a prefill server.
    Completions,
    /// Requests of another route.
    Embeddings,
    /// Requests of a P/D route, with both servers.
    Disaggregated,
}

impl Route {
    pub(crate) const fn is_disaggregated(self) -> bool {
        matches!(self, Self::Disaggregated)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// The figure is what a proxy adds to that of the fakes asked directly.
    pub(crate) added: bool,
}

const fn figure(name: &'static str, unit: &'static str, added: bool) -> Figure {
    Figure { name, unit, added }
}

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        use Route::{Completions, Disaggregated, Embeddings};
        let rate = |route, connections| Self::Rate { route, connections };
        vec![
            Self::Added { connections: 1 },
            Self::Added { connections: 8 },
            Self::Legs,
            rate(Completions, 32),
            rate(Completions, 128),
            rate(Embeddings, 32),
            rate(Embeddings, 128),
            rate(Disaggregated, 32),
            Self::Streams,
            Self::Memory,
        ]
    }

    pub(crate) fn title(self, scale: &Scale) -> String {
        let streams = scale.streams;
        match self {
            Self::Added { connections: 1 } => "time to the first byte, 1 connection".to_owned(),
            Self::Added { connections } => {
                format!("time to the first byte, {connections} connections")
            }
            Self::Legs => "a P/D request; straight: its two legs".to_owned(),
            Self::Rate { route, connections } => {
                let route = match route {
                    Route::Completions => "passed through, /v1/completions",
                    Route::Embeddings => "passed through, /v1/embeddings",
                    Route::Disaggregated => "P/D, /v1/completions",
                };
                format!("requests of 1 KiB, {route}, {connections} connections")
            }
            Self::Streams => format!("{streams} streams, an event each 200 ms: its delay"),
            Self::Memory => format!("{streams} idle streams: resident memory"),
        }
    }

    pub(crate) const fn figures(self) -> &'static [Figure] {
        const TIMES: [Figure; 2] = [figure("median", "us", true), figure("p99", "us", true)];
        const RATE: [Figure; 2] = [figure("rate", "1/s", false), figure("processor time", "us each", false)];
        const STREAMS: [Figure; 4] = [
            figure("median", "ms", true),
            figure("p99", "ms", true),
            figure("processor time", "us an event", false),
            figure("broken", "streams", false),
        ];
        const MEMORY: [Figure; 1] = [figure("memory", "KiB each", false)];
        match self {
            Self::Added { .. } | Self::Legs => &TIMES,
            Self::Rate { .. } => &RATE,
            Self::Streams => &STREAMS,
            Self::Memory => &MEMORY,
        }
    }

    /// Measures each of the figures once.
    pub(crate) async fn once(self, peer: &Running, fakes: Fakes, scale: &Scale) -> io::Result<Vec<f64>> {
        match self {
            Self::Added { connections } => latency::first_byte(peer.at, connections, scale.time).await,
            Self::Legs if peer.peer == Peer::Direct => latency::straight(fakes, scale.time).await,
            Self::Legs => latency::through(peer.at, fakes.prefill, scale.time).await,
            Self::Rate { route, connections } => rate::measure(peer, fakes, route, connections, scale.time).await,
            Self::Streams => streams::delays(peer, scale).await,
            Self::Memory => streams::memory(peer, scale).await,
        }
    }
}

fn quantile<T: Copy>(sorted: &[T], of: f64) -> T {
    sorted[((sorted.len() - 1) as f64 * of).round() as usize]
}

/// Returns median and 99th percentile in microseconds.
fn times(mut times: Vec<Duration>) -> io::Result<Vec<f64>> {
    if times.is_empty() {
        return Err(io::Error::other("not one answer"));
    }
    times.sort();
    let us = |of| quantile(&times, of).as_secs_f64() * 1e6;
    Ok(vec![us(0.5), us(0.99)])
}
