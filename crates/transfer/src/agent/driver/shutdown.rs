//! Shutting down: how long everything in progress may continue, and which callers wait for the end.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// The farthest deadline: practically never, and without overflow.
pub(super) const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The state of an agent's shutdown.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    waiting: Vec<oneshot::Sender<()>>,
    /// The time when the patience ends, once the shutdown has begun.
    patience: Option<Instant>,
    /// Whether the patience has ended, and everything in progress was given up.
    impatient: bool,
}

impl Shutdown {
    /// Begins the shutdown, or shortens the patience. `done` is notified of the end.
    pub(super) fn begin(&mut self, patience: Duration, done: Option<oneshot::Sender<()>>) {
        self.waiting.extend(done);
        let until = Instant::now() + patience.min(NEVER);
        self.patience = Some(self.patience.map_or(until, |already| already.min(until)));
    }

    pub(super) fn has_begun(&self) -> bool {
        self.patience.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.patience.filter(|_| !self.impatient)
    }

    /// Returns whether the patience ends now. Returns `true` only once.
    pub(super) fn runs_out(&mut self) -> bool {
        let now = self.deadline().is_some_and(|until| until <= Instant::now());
        self.impatient |= now;
        now
    }

    pub(super) fn is_impatient(&self) -> bool {
        self.impatient
    }

    pub(super) fn finish(&mut self) {
        for done in self.waiting.drain(..) {
            // The caller may have stopped waiting.
            let _ = done.send(());
        }
    }
}
