//! The health of one server, judged by probes and by the outcomes of its requests.

use std::time::{Duration, Instant};

/// The number of consecutive failures after which a server is left alone.
const FAILURES: u32 = 3;

/// The time that a server is left alone, and the time between two trials after that.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// The last probe failed.
    down: bool,
    failures: u32,
    /// The number of consecutive requests that ended because the server was silent. Costly requests cause that, too.
    silences: u32,
    /// Set after several failures: the server gets no request until this time, then one for each [`PAUSE`] until one
    /// succeeds. The end of such a trial is not awaited, since an answer may take minutes and a server that hangs gives
    /// none.
    open: Option<Instant>,
}

impl Health {
    pub(super) fn admits(&self, now: Instant) -> bool {
        !self.down && self.open.is_none_or(|until| until <= now)
    }

    pub(super) const fn is_down(&self) -> bool {
        self.down
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Records the result of a probe. Returns whether it changes the state.
    pub(super) fn probed(&mut self, healthy: bool) -> bool {
        std::mem::replace(&mut self.down, !healthy) == healthy
    }

    pub(super) fn asked(&mut self, now: Instant) {
        if self.admits(now) && self.is_open() {
            self.open = Some(now + PAUSE);
        }
    }

    /// Records that an answer has begun well: the server may get further requests. The next failure counts as if this
    /// call had not been made. Returns the server's new state (true: well) if it has changed.
    pub(super) fn answered(&mut self) -> Option<bool> {
        self.silences = 0;
        self.open.take().map(|_| true)
    }

    /// Records that a request ended because the server was silent. Returns whether this is so frequent that a probe is
    /// needed.
    pub(super) fn silent(&mut self) -> bool {
        self.silences += 1;
        let often = self.silences >= FAILURES;
        if often {
            self.silences = 0;
        }
        often
    }

    /// Records that the server does not even answer a probe. Returns the server's new state (false: not well) if it has
    /// changed.
    pub(super) fn dead(&mut self, now: Instant) -> Option<bool> {
        self.failures = self.failures.max(FAILURES);
        self.judged(true, now)
    }

    /// Records the outcome of a request. Returns the server's new state (true: well) if it has changed.
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
