//! Results of jobs: reports and errors.

use std::time::Duration;

use transload_plan::codec::Codec;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Incarnation, Rank};

use crate::deployments::Unpaired;
use crate::lease::LeaseEnd;
use crate::path::Path;
use crate::refusal::{Failure, HelloRefusal, Refusal, Text};
use crate::ticket::TicketError;
use crate::waiting::Waiting;

/// The result of a successful job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobReport {
    /// The number of bytes that have moved on all routes.
    pub bytes: u64,
    /// The duration of the job.
    pub took: Duration,
    /// The part of the duration before the first byte moved, spent waiting for a connection, the lease or the prefill.
    pub queued: Duration,
    /// The reports of the routes.
    pub routes: Vec<RouteReport>,
    /// The groups of which nothing has moved, because one side alone has them.
    pub unpaired: Unpaired,
}

/// The result of one route between a local rank and a rank of the peer. `attempts` counts all attempts, including the
/// one that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types say what each is")]
#[non_exhaustive]
pub struct RouteReport {
    pub rank: Rank,
    pub peer_rank: Rank,
    pub bytes: u64,
    pub path: Path,
    pub attempts: u32,
}

/// The reason why a pull or a push failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each is")]
pub enum JobError {
    /// The ticket is not one of this cluster's.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    #[error("the ticket is of cluster {theirs}, this is {ours}")]
    Cluster { ours: ClusterName, theirs: ClusterName },
    #[error("the ticket is for another agent")]
    Audience,
    /// The ticket was made by this very engine, which has the blocks already.
    #[error(
        "the ticket is of this engine itself, so there is nothing to move: use the blocks that it leases, compute \
         the request here, or send it to another engine"
    )]
    OwnTicket,
    #[error("rank {rank} is not of this agent")]
    NotOurs { rank: Rank },
    #[error("no rank takes part")]
    NoRanks,
    /// The request is for more tokens than the ticket covers. A push must be for exactly its tokens.
    #[error("tokens {start}..{end} were asked for, the ticket covers {first}..{valid}")]
    Tokens { start: u64, end: u64, first: u64, valid: u64 },
    /// Another job with this ticket and one of these ranks is in progress.
    #[error("rank {rank} is busy with this ticket already")]
    UnderWay { rank: Rank },
    #[error("{limit} pulls and pushes are under way, and no more are allowed")]
    TooMany { limit: usize },
    #[error("it cannot be planned: {why}")]
    Plan { why: Text },
    /// The request cannot use this codec.
    #[error("it cannot come as {codec}: {why}")]
    Codec { codec: Codec, why: Text },
    #[error("agent {agent} could not be reached: {why}")]
    Unreachable {
        agent: AgentId,
        /// The outcome of the last attempt, with the address that was dialled.
        why: Text,
    },
    /// An agent of the ticket refused this one, or was refused.
    #[error("agent {agent}: {refusal}")]
    Hello { agent: AgentId, refusal: HelloRefusal },
    #[error("agent {agent} may not serve: its certificate lacks that role")]
    MayNotServe { agent: AgentId },
    #[error("agent {agent} is of deployment {found}, the ticket says {ticket}")]
    Deployment { agent: AgentId, found: DeploymentDigest, ticket: DeploymentDigest },
    /// An agent of the ticket has restarted, so its leases are gone.
    #[error(
        "agent {agent} has restarted since the ticket was made, or two instances of its service have one name \
         (then give each an `instance` of its own)"
    )]
    Restarted { agent: AgentId, found: Incarnation, ticket: Incarnation },
    #[error("rank {peer_rank} there refuses rank {rank}: {refusal}")]
    Refused { rank: Rank, peer_rank: Rank, refusal: Refusal },
    #[error("the blocks cannot be opened for a push: {why}")]
    WriteLease { why: Text },
    #[error("agent {agent} refuses to push: {refusal}")]
    NotPushed { agent: AgentId, refusal: Refusal },
    /// An agent of the owner may not push here, or its push was refused here.
    #[error("agent {agent} may not push into the blocks: {refusal}")]
    PushRefused { agent: AgentId, refusal: Refusal },
    /// The lease of the blocks has ended. For a pull, the owner has given up its push; for an invited push, the holder
    /// has, or the lease's time is over.
    #[error("the lease of the blocks has ended ({end})")]
    LeaseEnded { end: LeaseEnd },
    /// A route has failed for good, or too often.
    #[error("between rank {rank} here and {peer_rank} there, at attempt {attempts}: {failure}")]
    Failed { rank: Rank, peer_rank: Rank, attempts: u32, failure: Failure },
    #[error("it took longer than {timeout:?}{}", .waiting.as_ref().map_or(String::new(), |on| format!(": it waited for {on}")))]
    TimedOut { timeout: Duration, waiting: Option<Waiting> },
    /// The device of a local rank was lost, and the blocks' contents with it.
    #[error("the device of rank {rank} is lost")]
    DeviceLost { rank: Rank },
    /// The device of a local rank did not finish its work in time. It may still use the blocks, so they must not be
    /// used.
    #[error("the device of rank {rank} is not done with the blocks, which must not be used")]
    DeviceStalled { rank: Rank },
    #[error("it was cancelled")]
    Cancelled,
    #[error("the agent is shutting down")]
    ShuttingDown,
}

impl JobError {
    /// Returns a word for counters and logs. `TransferError::kind` of agents lists them.
    pub fn kind(&self) -> &'static str {
        match self {
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
                Failure::DeviceLost | Failure::LeaseEnded { end: LeaseEnd::DeviceLost } => "device_lost",
                Failure::DeviceStalled | Failure::LeaseEnded { end: LeaseEnd::DeviceStalled } => "device_stalled",
                _ => "failed",
            },
            JobError::TimedOut { .. } => "timed_out",
            JobError::DeviceLost { .. } => "device_lost",
            JobError::DeviceStalled { .. } => "device_stalled",
            JobError::Cancelled => "cancelled",
            JobError::ShuttingDown => "shutting_down",
        }
    }

    pub(crate) fn as_failure(&self) -> Failure {
        match self {
            JobError::DeviceLost { .. } | JobError::LeaseEnded { end: LeaseEnd::DeviceLost } => Failure::DeviceLost,
            JobError::DeviceStalled { .. } | JobError::LeaseEnded { end: LeaseEnd::DeviceStalled } => {
                Failure::DeviceStalled
            }
            _ => Failure::Cancelled,
        }
    }

    /// Returns whether the owner must not be told that the job is given up. It may have said that the lease is not
    /// ours, so that a cancellation could end the lease of another holder; or it does not talk to us, because our
    /// deployments do not fit.
    pub(crate) fn is_not_ours(&self) -> bool {
        match self {
            JobError::Refused { refusal, .. } | JobError::NotPushed { refusal, .. } => matches!(
                refusal,
                Refusal::WrongPeer
                    | Refusal::DigestMismatch
                    | Refusal::Consumed
                    | Refusal::Superseded { .. }
                    | Refusal::Expired
                    | Refusal::Cancelled
                    | Refusal::PeerLost
                    | Refusal::DeviceLost
                    | Refusal::DeviceStalled
            ),
            JobError::Hello { refusal, .. } => refusal.is_misfit(),
            _ => false,
        }
    }
}

/// The outcome of a cancellation or renewal by ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoticeOutcome {
    /// The number of the ticket's agents that have accepted the notice, and the number of all.
    pub heard: (usize, usize),
    /// Used by renewals only: the least time that the leases still live.
    pub left: Option<Duration>,
    /// The last refusal, if any.
    pub refusal: Option<Refusal>,
}
