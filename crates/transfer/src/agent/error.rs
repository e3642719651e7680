//! Errors of an agent's operations, one type for each.

use thiserror::Error;

use transload_plan::ids::Direction;
use transload_plan::{BindError, Tables};
use transload_wire::{JobError, LeaseError, LeaseKey, OpenFault};

/// The agent has stopped. After this answer to a lease or a transfer, nothing touches its blocks any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the agent has stopped")]
pub struct AgentGone;

/// The reason why blocks could not be leased or opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LeaseOpenError {
    /// The lease was refused. The error returns the blocks.
    #[error("lease {key} cannot be opened: {reason}")]
    Refused { key: LeaseKey, reason: OpenFault, tables: Tables },
    /// The block tables do not fit this agent's deployment.
    #[error("the blocks cannot be leased: {fault}")]
    Tables { fault: BindError, tables: Tables },
    /// The work that the request waited for (its `after`) has failed, or its end cannot be known.
    #[error("the blocks cannot be opened: {why}")]
    After { why: String, tables: Tables },
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// The reason why an owner's operation on its lease failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaseUseError {
    /// The lease is over, or the operation is invalid for it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// The reason why the blocks of an ended lease are not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaseEndError {
    /// The device did not finish its work on the blocks within
    /// [`Options::device_stall`](crate::wire::Options::device_stall), and may still touch them. They must never be used
    /// again. The keeper is kept until the device is done after all.
    #[error("the device is not done with the blocks, which must not be used")]
    Stalled,
    /// The agent has stopped, and nothing touches the blocks any more.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// The reason why a pull or a push failed. Nothing touches its blocks any more, except after
/// [`DeviceStalled`](JobError::DeviceStalled): then they must never be used again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The transfer was refused, or has failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The ticket is for the other direction.
    #[error("the ticket allows a {allowed}")]
    Direction {
        /// The direction of the ticket.
        allowed: Direction,
    },
    /// The block tables do not fit this agent's deployment. The peer was not asked.
    #[error("the blocks cannot be used: {0}")]
    Tables(BindError),
    /// The work that the request waited for (its `after`) has failed, or its end cannot be known. The peer was not
    /// asked.
    #[error("the blocks cannot be used: {0}")]
    After(String),
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

impl TransferError {
    /// Returns a word for counters and logs: `content`, `consumed`, `expired`, `unknown`, `cancelled`, `refused`,
    /// `peer_lost`, `restarted`, `unreachable`, `incompatible`, `failed`, `timed_out`, `busy`, `ticket`, `own`,
    /// `request`, `shutting_down`, `version`, `device_lost`, `device_stalled` or `other`. `device_lost` and
    /// `device_stalled` are about devices of either side.
    pub fn kind(&self) -> &'static str {
        match self {
            TransferError::Job(error) => error.kind(),
            TransferError::Direction { .. } => "ticket",
            TransferError::Tables(_) => "request",
            TransferError::After(_) => "failed",
            TransferError::Gone(_) => "other",
        }
    }

    /// Returns whether every transfer between these two agents fails like this in their current configuration
    /// ([`HelloRefusal::is_misfit`](crate::wire::HelloRefusal::is_misfit)).
    pub fn is_misfit(&self) -> bool {
        match self {
            TransferError::Job(JobError::Hello { refusal, .. }) => refusal.is_misfit(),
            _ => false,
        }
    }
}

/// The reason why a ticket could not be cancelled or renewed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoticeError {
    /// The ticket cannot be used by this agent.
    #[error(transparent)]
    Ticket(JobError),
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

#[cfg(test)]
mod tests {
    use super::*;
    use transload_plan::ids::AgentId;
    use transload_wire::{HelloRefusal, Refusal};

    /// The kind is the same for either side that finds the two incompatible.
    #[test]
    fn what_cannot_be_planned_is_incompatible() {
        let why = || "no common heads".into();
        let agent = AgentId::new("owner").unwrap();
        let refusal = Refusal::Unplannable { why: why() };
        for error in [JobError::Plan { why: why() }, JobError::NotPushed { agent, refusal }] {
            let error = TransferError::from(error);
            assert_eq!(error.kind(), "incompatible");
            // Another request may still be possible.
            assert!(!error.is_misfit());
        }
    }

    #[test]
    fn who_never_fits_is_told_from_who_may() {
        let versions = HelloRefusal::Version { ours: (1, 2), theirs: (3, 3) };
        for (refusal, kind, never) in
            [(versions, "version", true), (HelloRefusal::ShuttingDown, "shutting_down", false)]
        {
            let agent = AgentId::new("owner").unwrap();
            let error = TransferError::from(JobError::Hello { agent, refusal });
            assert_eq!((error.kind(), error.is_misfit()), (kind, never));
        }
    }
}
