//! What is known of one server's health: by probes, and by how requests to it end.

use std::time::{Duration, Instant};

/// Failures in a row after which a server is left alone.
const FAILURES: u32 = 3;

/// How long it is left alone, and the time from one trial of it to the next.
const PAUSE: Duration = Duration::from_secs(2);

/// One server's health.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// The last probe failed.
    down: bool,
    failures: u32,
    /// Requests in a row that were given up for its silence, which those that are costly bring about, too.
    silences: u32,
    /// Requests have failed: it is left alone until then, and after that gets one request each [`PAUSE`] until one succeeds. Their
    /// ends are not waited for, since an answer may take minutes, and a server that hangs gives none.
    open: Option<Instant>,
}

impl Health {
    /// Tells whether a request may be sent to it.
    pub(super) fn admits(&self, now: Instant) -> bool {
        !self.down && self.open.is_none_or(|until| until <= now)
    }

    pub(super) const fn is_down(&self) -> bool {
        self.down
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes what a probe has found; whether that is news.
    pub(super) fn probed(&mut self, healthy: bool) -> bool {
        std::mem::replace(&mut self.down, !healthy) == healthy
    }

    /// Takes note that a request is sent to it.
    pub(super) fn asked(&mut self, now: Instant) {
        if self.admits(now) && self.is_open() {
            self.open = Some(now + PAUSE);
        }
    }

    /// Takes note that an answer has begun well: others may be sent to it, and the next failure counts as if this had not been. Tells
    /// whether it is well, if that is news.
    pub(super) fn answered(&mut self) -> Option<bool> {
        self.silences = 0;
        self.open.take().map(|_| true)
    }

    /// Takes note that a request was given up for its silence; whether that was so often that it is to be asked for a sign of life.
    pub(super) fn silent(&mut self) -> bool {
        self.silences += 1;
        let often = self.silences >= FAILURES;
        if often {
            self.silences = 0;
        }
        often
    }

    /// Takes note that it gives no sign of life, whatever it is asked. Tells whether it is well, if that is news.
    pub(super) fn dead(&mut self, now: Instant) -> Option<bool> {
        self.failures = self.failures.max(FAILURES);
        self.judged(true, now)
    }

    /// Takes how a request has ended. Tells whether it is well, if that is news.
    pub(super) fn judged(&mut self, failed: bool, now: Instant) -> Option<bool> {
        if !failed {
            self.failures = 0;
            return self.answered();
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES {
            return None;
        }
        let before = self.open.replace(now + PAUSE);
        before.is_none().then_some(false)
    }
}
