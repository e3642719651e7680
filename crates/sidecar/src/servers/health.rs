//! What is known of one server's health: by probes, and by how requests to it end.

use std::time::{Duration, Instant};

/// Failures in a row after which a server is left alone.
const FAILURES: u32 = 3;

/// How long it is left alone.
const PAUSE: Duration = Duration::from_secs(2);

/// One server's health.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// The last probe failed.
    down: bool,
    failures: u32,
    /// Requests have failed: it is left alone until then, and after that gets one request at a time until one succeeds.
    open: Option<Instant>,
    trial: bool,
}

/// Whether a request may be sent to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Open,
    /// One request may find out whether it is well again.
    Trial,
    Closed,
}

impl Health {
    pub(super) fn admission(&self, now: Instant) -> Admission {
        match self.open {
            _ if self.down => Admission::Closed,
            None => Admission::Open,
            Some(until) if now >= until && !self.trial => Admission::Trial,
            Some(_) => Admission::Closed,
        }
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

    pub(super) fn begin_trial(&mut self) {
        self.trial = true;
    }

    /// A trial has ended without a result: the next request is one.
    pub(super) fn trial_left(&mut self) {
        self.trial = false;
    }

    pub(super) fn judged(&mut self, failed: bool, now: Instant) {
        self.trial = false;
        if !failed {
            (self.failures, self.open) = (0, None);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            self.open = Some(now + PAUSE);
        }
    }
}
