//! Shutting down: until when what is under way may go on, and who waits for the end.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How far ahead a deadline can be: as good as never, and no clock runs over.
pub(super) const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whether an agent is shutting down, and for whom.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    waiting: Vec<oneshot::Sender<()>>,
    /// Until when what is under way may go on, once it has begun.
    patience: Option<Instant>,
    /// Whether the patience has run out: what was under way then is given up.
    impatient: bool,
}

impl Shutdown {
    /// Begins to shut down, or has less patience than before; tells `done` the end.
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

    /// Whether the patience runs out now. That it does is told once.
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
            // Whoever asked may be gone.
            let _ = done.send(());
        }
    }
}
