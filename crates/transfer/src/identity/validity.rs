//! Periods of certificates.

use std::time::{Duration, SystemTime};

/// The period in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl Validity {
    /// Returns a period of `days` days from now. It starts an hour ago, so that hosts whose clocks lag accept the
    /// certificate.
    #[must_use]
    pub fn days(days: u32) -> Self {
        const HOUR: Duration = Duration::from_secs(60 * 60);
        let now = SystemTime::now();
        Self { from: now.checked_sub(HOUR).unwrap_or(now), until: now.checked_add(HOUR * 24 * days).unwrap_or(now) }
    }

    /// Returns whether less than a tenth of the period is left.
    pub(super) fn is_ending(&self, now: SystemTime) -> bool {
        let left = self.until.duration_since(now).unwrap_or_default();
        left < self.until.duration_since(self.from).unwrap_or_default() / 10
    }

    /// Returns the usual period for agents: a year.
    #[must_use]
    pub fn of_agent() -> Self {
        Self::days(365)
    }
}
