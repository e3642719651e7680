//! What can go wrong with what users of an agent ask for, an error for each operation.

use thiserror::Error;

use transload_plan::ids::Direction;
use transload_plan::{BindError, Tables};
use transload_wire::{JobError, LeaseError, LeaseKey, OpenFault};

/// The agent has stopped. Whoever gets this in answer to a lease or a transfer has its blocks back:
/// nothing touches them any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the agent has stopped")]
pub struct AgentGone;

/// Why blocks were not leased, or not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LeaseOpenError {
    /// There cannot be such a lease: the blocks are still the caller's.
    #[error("lease {key} cannot be opened: {reason}")]
    Refused { key: LeaseKey, reason: OpenFault, tables: Tables },
    /// The block tables cannot be those of this agent's deployment.
    #[error("the blocks cannot be leased: {fault}")]
    Tables { fault: BindError, tables: Tables },
    /// The request waited for other work (its `after`), and that failed, or nobody can tell its end.
    #[error("the blocks cannot be opened: {why}")]
    After { why: String, tables: Tables },
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// Why an owner cannot do something with its lease.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaseUseError {
    /// The lease is over, or what was said of it cannot be.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// Why the blocks of a lease do not come back with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaseEndError {
    /// Their device is not done with them within [`Options::device_stall`](transload_wire::Options::device_stall), and may still touch
    /// them: they must never be used again. The keeper stays until it is done after all.
    #[error("the device is not done with the blocks, which must not be used")]
    Stalled,
    /// The agent has stopped. Nothing touches them any more.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

/// Why a pull or a push came to nothing. Nothing touches its blocks any more, but for
/// [`DeviceStalled`](JobError::DeviceStalled), after which they must never be used again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// It was refused, or it failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The ticket is for the other direction.
    #[error("the ticket allows a {allowed}")]
    Direction {
        /// What it is for.
        allowed: Direction,
    },
    /// The block tables cannot be those of this agent's deployment. Nothing was asked of the peer.
    #[error("the blocks cannot be used: {0}")]
    Tables(BindError),
    /// The request waited for other work (its `after`), and that failed, or nobody can tell its end. The peer was asked for
    /// nothing.
    #[error("the blocks cannot be used: {0}")]
    After(String),
    /// The agent has stopped.
    #[error(transparent)]
    Gone(#[from] AgentGone),
}

impl TransferError {
    /// A word for counters and logs: `content`, `consumed`, `expired`, `unknown`, `cancelled`, `refused`,
    /// `peer_lost`, `restarted`, `unreachable`, `incompatible`, `failed`, `timed_out`, `busy`, `ticket`, `own`, `request`,
    /// `shutting_down`, `version`, `device_lost`, `device_stalled` or `other`. The last two but one are told of devices of either side.
    pub fn kind(&self) -> &'static str {
        match self {
            TransferError::Job(error) => error.kind(),
            TransferError::Direction { .. } => "ticket",
            TransferError::Tables(_) => "request",
            TransferError::After(_) => "failed",
            TransferError::Gone(_) => "other",
        }
    }

    /// Tells whether every transfer between these two agents fails so, until one of them is started otherwise
    /// ([`HelloRefusal::is_misfit`](transload_wire::HelloRefusal::is_misfit)).
    pub fn is_misfit(&self) -> bool {
        match self {
            TransferError::Job(JobError::Hello { refusal, .. }) => refusal.is_misfit(),
            _ => false,
        }
    }
}

/// Why a ticket could not be cancelled or renewed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoticeError {
    /// The ticket is not to be used here.
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

    /// Whichever side finds that the two cannot be bridged.
    #[test]
    fn what_cannot_be_planned_is_incompatible() {
        let why = || "no common heads".into();
        let agent = AgentId::new("owner").unwrap();
        let refusal = Refusal::Unplannable { why: why() };
        for error in [JobError::Plan { why: why() }, JobError::NotPushed { agent, refusal }] {
            let error = TransferError::from(error);
            assert_eq!(error.kind(), "incompatible");
            // Another request may be planned.
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
