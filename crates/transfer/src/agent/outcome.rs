//! How leases, transfers and notices end.

use std::time::Duration;

use super::error::LeaseEndError;
use crate::lease::LeaseEnd;
use crate::plan::Tables;
use crate::wire::{JobReport, Refusal};

/// How a lease ended: why, and the blocks, which nothing touches any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOutcome {
    /// Why it ended.
    pub end: LeaseEnd,
    /// The blocks that it held.
    pub tables: Tables,
}

/// How a lease ends.
pub(super) type LeaseEnded = Result<LeaseOutcome, LeaseEndError>;

/// What a pull or a push has done.
pub type PullReport = JobReport;

/// What has become of a cancellation or renewal by ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeOutcome {
    /// How many agents of the ticket have heard it, out of all.
    pub heard: (usize, usize),
    /// Used by renewals only: how long the leases live on at least.
    pub left: Option<Duration>,
    /// The last refusal, if there was any.
    pub refusal: Option<Refusal>,
}
