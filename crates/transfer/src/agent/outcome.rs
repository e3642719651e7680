//! The outcomes of leases, pulls and pushes.

use super::error::{LeaseEndError, TransferError};
use super::promise::CancelOnDrop;
use transload_plan::Tables;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{Direction, LeaseSetId};
use transload_wire::{JobId, JobReport, LeaseEnd};

/// The end of a lease: the reason, and the blocks, which nothing touches any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOutcome {
    /// The reason.
    pub end: LeaseEnd,
    /// The blocks of the lease.
    pub tables: Tables,
}

pub(super) type LeaseEnded = Result<LeaseOutcome, LeaseEndError>;

/// The result of a successful pull or push.
pub type PullReport = JobReport;

pub(super) type JobResult = Result<PullReport, TransferError>;

pub(super) type Started = (JobId, CancelOnDrop<JobResult>);

/// Identifies a pull or a push in counters and logs.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLabel {
    pub(super) direction: Direction,
    pub(super) set: LeaseSetId,
    pub(super) content: ContentDigest,
}
