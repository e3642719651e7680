//! What can go wrong with what users of an agent ask for, an error for each operation.

use thiserror::Error;

use crate::ids::Direction;
use crate::lease::{LeaseEnd, LeaseError, LeaseKey, OpenFault};
use crate::plan::{BindError, Tables};
use crate::wire::{Failure, HelloRefusal, JobError, Refusal};

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
    Refused {
        key: LeaseKey,
        reason: OpenFault,
        tables: Tables,
    },
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
    /// Their device is not done with them within [`Options::device_stall`](crate::wire::Options::device_stall), and may still touch
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
        let error = match self {
            TransferError::Job(error) => error,
            TransferError::Direction { .. } => return "ticket",
            TransferError::Tables(_) => return "request",
            TransferError::After(_) => return "failed",
            TransferError::Gone(_) => return "other",
        };
        match error {
            JobError::Ticket(_) | JobError::Cluster { .. } | JobError::Audience => "ticket",
            JobError::OwnTicket => "own",
            JobError::NotOurs { .. } | JobError::NoRanks | JobError::Tokens { .. } => "request",
            JobError::UnderWay { .. } | JobError::TooMany { .. } => "busy",
            JobError::Plan { .. } => "incompatible",
            JobError::Unreachable { .. } => "unreachable",
            JobError::Hello { refusal, .. } => match refusal {
                HelloRefusal::Cluster { .. }
                | HelloRefusal::Agent
                | HelloRefusal::OwnName
                | HelloRefusal::Rank { .. } => "refused",
                HelloRefusal::Superseded { .. } => "restarted",
                HelloRefusal::OtherInstance { .. } => "unreachable",
                HelloRefusal::Crowded { .. } => "busy",
                HelloRefusal::ShuttingDown => "shutting_down",
                HelloRefusal::Version { .. } => "version",
                HelloRefusal::Document { .. } | HelloRefusal::Specs(_) => "incompatible",
            },
            JobError::MayNotServe { .. } => "refused",
            JobError::Deployment { .. } | JobError::Restarted { .. } => "restarted",
            JobError::WriteLease { .. } | JobError::Codec { .. } => "request",
            JobError::LeaseEnded { end } => match end {
                LeaseEnd::Expired => "expired",
                LeaseEnd::PeerLost => "peer_lost",
                LeaseEnd::DeviceLost => "device_lost",
                LeaseEnd::DeviceStalled => "device_stalled",
                LeaseEnd::Completed | LeaseEnd::Cancelled => "failed",
            },
            JobError::Refused { refusal, .. }
            | JobError::NotPushed { refusal, .. }
            | JobError::PushRefused { refusal, .. } => match refusal {
                Refusal::Expired => "expired",
                Refusal::Consumed => "consumed",
                Refusal::DigestMismatch => "content",
                Refusal::Cancelled => "cancelled",
                Refusal::PeerLost => "peer_lost",
                Refusal::UnknownLease => "unknown",
                Refusal::Busy { .. } => "busy",
                Refusal::Unplannable { .. } => "incompatible",
                Refusal::DeviceLost => "device_lost",
                Refusal::DeviceStalled => "device_stalled",
                _ => "refused",
            },
            JobError::Failed { failure, .. } => match failure {
                Failure::DeviceLost
                | Failure::LeaseEnded {
                    end: LeaseEnd::DeviceLost,
                } => "device_lost",
                Failure::DeviceStalled
                | Failure::LeaseEnded {
                    end: LeaseEnd::DeviceStalled,
                } => "device_stalled",
                _ => "failed",
            },
            JobError::TimedOut { .. } => "timed_out",
            JobError::DeviceLost { .. } => "device_lost",
            JobError::DeviceStalled { .. } => "device_stalled",
            JobError::Cancelled => "cancelled",
            JobError::ShuttingDown => "shutting_down",
        }
    }
}

impl TransferError {
    /// Tells whether every transfer between these two agents fails so, until one of them is started otherwise
    /// ([`HelloRefusal::is_misfit`]).
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
    use crate::ids::AgentId;

    /// Whichever side finds that the two cannot be bridged.
    #[test]
    fn what_cannot_be_planned_is_incompatible() {
        let why = || "no common heads".into();
        let agent = AgentId::new("owner").unwrap();
        let refusal = Refusal::Unplannable { why: why() };
        for error in [
            JobError::Plan { why: why() },
            JobError::NotPushed { agent, refusal },
        ] {
            let error = TransferError::from(error);
            assert_eq!(error.kind(), "incompatible");
            // Another request may be planned.
            assert!(!error.is_misfit());
        }
    }

    #[test]
    fn who_never_fits_is_told_from_who_may() {
        let versions = HelloRefusal::Version {
            ours: (1, 2),
            theirs: (3, 3),
        };
        for (refusal, kind, never) in [
            (versions, "version", true),
            (HelloRefusal::ShuttingDown, "shutting_down", false),
        ] {
            let agent = AgentId::new("owner").unwrap();
            let error = TransferError::from(JobError::Hello { agent, refusal });
            assert_eq!((error.kind(), error.is_misfit()), (kind, never));
        }
    }
}
