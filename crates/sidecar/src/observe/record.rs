//! The record of one request: its events and their times.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::status::{Failure, Row, millis};
use super::{FailureKind, Inner, Outcome, Path};
use crate::Role;
use crate::target::ServerUrl;

/// The entry of one request, written by the request and read by `/status`.
pub(super) type Shared = Arc<Mutex<Entry>>;

/// The record of one request. The request owns it and reports its events. Each event takes a lock, which is contended
/// only while `/status` is read, and allocates nothing.
///
/// ```text
/// begin ── received ── prefill_asked ── prefill_answered ── decode_asked ── decode_answered ── first_byte ── finish
/// │◄────── queue ─────►│◄── prefill ──►│◄───────── transfer, first token ──────────►│           │◄─ stream ─►│
/// ```
///
/// A record that is dropped before [`finish`](Self::finish) ends as [`Outcome::ClientLeft`].
#[derive(Debug)]
pub struct Record {
    observer: Arc<Inner>,
    number: u64,
    shared: Option<Shared>,
}

#[derive(Debug)]
pub(super) struct Entry {
    id: Box<str>,
    path: Option<Path>,
    prefill: Leg,
    decode: Leg,
    accepted: Instant,
    first_leg: Option<Instant>,
    prefill_asked: Option<Instant>,
    /// The time of its answer or failure.
    prefill_ended: Option<Instant>,
    prefill_succeeded: bool,
    decode_asked: Option<Instant>,
    decode_answered: Option<Instant>,
    first_byte: Option<Instant>,
    ended: Option<(Instant, Outcome)>,
    /// The time from which the request has been waiting for us and for no server.
    overhead_since: Option<Instant>,
    /// The total of earlier such times.
    overhead: Duration,
    status: Option<u16>,
    failure: Option<(Role, FailureKind)>,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Leg {
    server: Option<ServerUrl>,
    open: bool,
}

pub(super) fn shared(id: &str, now: Instant) -> Shared {
    Arc::new(Mutex::new(Entry {
        id: id.into(),
        path: None,
        prefill: Leg::default(),
        decode: Leg::default(),
        accepted: now,
        first_leg: None,
        prefill_asked: None,
        prefill_ended: None,
        prefill_succeeded: false,
        decode_asked: None,
        decode_answered: None,
        first_byte: None,
        ended: None,
        overhead_since: None,
        overhead: Duration::ZERO,
        status: None,
        failure: None,
        prompt_tokens: None,
        cached_tokens: None,
        bytes: 0,
    }))
}

fn lock(shared: &Shared) -> MutexGuard<'_, Entry> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Record {
    pub(super) fn new(observer: Arc<Inner>, number: u64, shared: Shared) -> Self {
        Self { observer, number, shared: Some(shared) }
    }

    fn with(&self, change: impl FnOnce(&mut Entry, &Inner)) {
        if let Some(shared) = &self.shared {
            change(&mut lock(shared), &self.observer);
        }
    }

    /// Records the path of the request. The last call counts; without one it is [`Path::Rejected`].
    pub fn path(&self, path: Path) {
        self.with(|entry, _| entry.path = Some(path));
    }

    /// Records that enough of the client's request has arrived to ask a server.
    pub fn received(&self, now: Instant) {
        self.with(|entry, _| entry.overhead_since = Some(now));
    }

    /// Records that a prefill server is asked, the first or another one.
    pub fn prefill_asked(&self, server: &ServerUrl, now: Instant) {
        self.with(|entry, observer| {
            entry.asked(observer, Role::Prefill, server, now);
            entry.prefill_asked.get_or_insert(now);
            entry.prefill_ended = None;
            entry.prefill_succeeded = false;
        });
    }

    /// Records that the prefill server's answer is complete, or that the rest of it is not needed.
    pub fn prefill_answered(&self, now: Instant) {
        self.with(|entry, observer| {
            entry.prefill_succeeded = true;
            entry.leg_ended(observer, Role::Prefill, now);
        });
    }

    /// Records that a decode server is asked: the first, another one, or the same one again.
    pub fn decode_asked(&self, server: &ServerUrl, now: Instant) {
        self.with(|entry, observer| {
            entry.asked(observer, Role::Decode, server, now);
            if entry.first_byte.is_none() {
                entry.decode_asked = Some(now);
            }
        });
    }

    /// Records that the decode server's answer was only a probe, after which a prefill follows.
    pub fn decode_set_aside(&self, now: Instant) {
        self.with(|entry, observer| {
            entry.decode_answered = None;
            entry.leg_ended(observer, Role::Decode, now);
        });
    }

    /// Records the arrival of the first byte of the decode server's answer that is meant for the client.
    pub fn decode_answered(&self, now: Instant) {
        self.with(|entry, _| {
            if entry.decode_answered.is_none() {
                entry.decode_answered = Some(now);
                entry.overhead_since = Some(now);
            }
        });
    }

    /// Records the status of the client's answer.
    pub fn status(&self, status: u16) {
        self.with(|entry, _| entry.status = Some(status));
    }

    /// Records the time of the first byte of a server's answer sent to the client.
    pub fn first_byte(&self, now: Instant) {
        self.with(|entry, observer| {
            if entry.first_byte.is_none() {
                entry.first_byte = Some(now);
                entry.end_overhead(now);
                observer.metrics.first_token(between(entry.accepted, now));
                observer.metrics.overhead(entry.overhead);
            }
        });
    }

    /// Records and counts a failure of the server of `role`, which ends its leg.
    pub fn failure(&self, role: Role, kind: FailureKind, now: Instant) {
        self.with(|entry, observer| {
            entry.failure = Some((role, kind));
            // An answer may have arrived, and report the failure.
            match role {
                Role::Prefill => entry.prefill_succeeded = false,
                Role::Decode if entry.first_byte.is_none() => entry.decode_answered = None,
                Role::Decode => {}
            }
            entry.leg_ended(observer, role, now);
            observer.metrics.failure(role, kind);
        });
    }

    /// Records the number of tokens in the prompt, and how many of them the prefill server had cached, as far as
    /// servers reported them.
    pub fn tokens(&self, prompt: Option<u64>, cached: Option<u64>) {
        self.with(|entry, _| {
            entry.prompt_tokens = prompt.or(entry.prompt_tokens);
            entry.cached_tokens = cached.or(entry.cached_tokens);
        });
    }

    /// Records that `count` more bytes of the answer's body were sent to the client.
    pub fn bytes(&self, count: usize) {
        self.with(|entry, _| entry.bytes += count as u64);
    }

    /// Ends the record with an outcome.
    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.end(outcome, now);
    }

    fn end(&mut self, outcome: Outcome, now: Instant) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        let mut entry = lock(&shared);
        let prefill = entry.prefill();
        entry.leg_ended(&self.observer, Role::Prefill, now);
        entry.leg_ended(&self.observer, Role::Decode, now);
        entry.ended = Some((now, outcome));
        let path = *entry.path.get_or_insert(Path::Rejected);
        drop(entry);
        self.observer.metrics.ended(path, prefill);
        self.observer.ended(self.number, shared);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.shared.is_some() {
            self.end(Outcome::ClientLeft, Instant::now());
        }
    }
}

impl Entry {
    fn leg(&mut self, role: Role) -> &mut Leg {
        match role {
            Role::Prefill => &mut self.prefill,
            Role::Decode => &mut self.decode,
        }
    }

    fn asked(&mut self, observer: &Inner, role: Role, server: &ServerUrl, now: Instant) {
        self.end_overhead(now);
        self.first_leg.get_or_insert(now);
        let leg = self.leg(role);
        leg.server = Some(server.clone());
        if !std::mem::replace(&mut leg.open, true) {
            observer.metrics.leg_began(role);
        }
    }

    fn leg_ended(&mut self, observer: &Inner, role: Role, now: Instant) {
        if std::mem::take(&mut self.leg(role).open) {
            if role == Role::Prefill {
                self.prefill_ended = Some(now);
            }
            observer.metrics.leg_ended(role);
            if !self.prefill.open && !self.decode.open {
                self.overhead_since = Some(now);
            }
        }
    }

    fn end_overhead(&mut self, now: Instant) {
        if let Some(since) = self.overhead_since.take() {
            self.overhead += between(since, now);
        }
    }

    /// Returns the time of the prefill leg if it was answered, including all servers that were tried.
    fn prefill(&self) -> Option<Duration> {
        let ended = self.prefill_ended.filter(|_| self.prefill_succeeded)?;
        Some(between(self.prefill_asked?, ended))
    }
}

/// Returns the time between two events, zero if threads saw them in the other order.
fn between(from: Instant, until: Instant) -> Duration {
    until.saturating_duration_since(from)
}

pub(super) fn row(shared: &Shared, now: Instant) -> Row {
    let entry = lock(shared);
    let since = |at| millis(between(entry.accepted, at));
    let end = entry.ended.map_or(now, |(at, _)| at);
    let disaggregated = entry.path == Some(Path::Disaggregated);
    let url = |leg: &Leg| leg.server.as_ref().map(ToString::to_string);
    // If both legs run at the same time, the transfer may be over before the prefill's answer arrives.
    let transfer_from = entry.prefill_ended.max(entry.decode_asked);
    Row {
        id: entry.id.to_string(),
        path: entry.path,
        prefill: url(&entry.prefill),
        decode: url(&entry.decode),
        outcome: entry.ended.map(|(_, outcome)| outcome),
        status: entry.status,
        failure: entry.failure.map(|(role, kind)| Failure { role, kind }),
        age_ms: since(now),
        queue_ms: entry.first_leg.map(since),
        prefill_at_ms: entry.prefill_asked.map(since),
        prefill_ms: entry.prefill_asked.map(|asked| {
            let until = entry.prefill_ended.unwrap_or(end);
            millis(between(asked, until))
        }),
        transfer_ms: transfer_from
            .filter(|_| disaggregated)
            .zip(entry.decode_answered)
            .map(|(from, until)| millis(between(from, until))),
        first_token_ms: entry.first_byte.map(since),
        total_ms: since(end),
        prompt_tokens: entry.prompt_tokens,
        cached_tokens: entry.cached_tokens,
        answer_bytes: entry.bytes,
    }
}
