//! Reads the servers' own metrics while a client reads the status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};

use super::source::Source;
use crate::observe::{ServerStatus, Transfers};

/// The shortest time between two rounds.
const EVERY: Duration = Duration::from_secs(5);
/// The longest time of a round; less than [`EVERY`], so that rounds do not overlap.
const ROUND: Duration = Duration::from_secs(4);
/// The time that the first request for the status waits for a round.
const FIRST: Duration = Duration::from_millis(500);
/// Limits for one server's metrics. vLLM has some 100 KiB for each engine.
const WITHIN: Duration = Duration::from_secs(1);
const LIMIT: usize = 2 << 20;
/// The servers that are asked concurrently, and in one round.
const AT_A_TIME: usize = 8;
const SERVERS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Scraper(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    asked: Option<Instant>,
    last: Option<Transfers>,
}

impl Scraper {
    /// Returns the result of the last round, and starts the next one if it is due.
    pub(super) async fn transfers<S: Source>(&self, source: &Arc<S>, servers: &[ServerStatus]) -> Option<Transfers> {
        let (due, first) = {
            let mut state = lock(&self.0);
            let now = Instant::now();
            let first = state.asked.is_none();
            let due = state.asked.is_none_or(|at| now - at >= EVERY);
            if due {
                state.asked = Some(now);
            }
            (due, first)
        };
        if due {
            let state = self.0.clone();
            let source = source.clone();
            let servers = servers.iter().take(SERVERS).cloned().collect();
            let round = tokio::spawn(async move {
                let found = round(&*source, servers).await;
                lock(&state).last = (found.servers > 0).then_some(found);
            });
            if first {
                let _ = tokio::time::timeout(FIRST, round).await;
            }
        }
        lock(&self.0).last.clone()
    }
}

async fn round<S: Source>(source: &S, servers: Vec<ServerStatus>) -> Transfers {
    let mut found = Transfers::default();
    let mut answers = stream::iter(servers)
        .map(async |server| source.get(&server, "/metrics", LIMIT, WITHIN).await)
        .buffer_unordered(AT_A_TIME);
    let read = async {
        while let Some(answer) = answers.next().await {
            if let Some(text) = answer.as_deref().and_then(|text| str::from_utf8(text).ok()) {
                found.add(text);
            }
        }
    };
    // A round that runs out of time keeps what it has read.
    let _ = tokio::time::timeout(ROUND, read).await;
    found
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
