//! How leases and transfers end.

use super::error::LeaseEndError;
use crate::lease::LeaseEnd;
use crate::plan::Tables;
use crate::wire::JobReport;

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
