//! What becomes of jobs: what they have done, or why they came to nothing.

use std::time::Duration;

use transload_plan::codec::Codec;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Incarnation, Rank};

use crate::awaited::Waiting;
use crate::lease::LeaseEnd;
use crate::path::Path;
use crate::refusal::{Failure, HelloRefusal, Refusal, Text};
use crate::ticket::TicketError;

/// What a job has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// How many bytes have moved, of all routes.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// How long of that it waited until its first byte moved: for a connection, the lease, the prefill.
    pub queued: Duration,
    /// The routes.
    pub routes: Vec<RouteReport>,
}

/// What one route between a rank here and one of the peer's has done: so many bytes have moved by this path, at the last
/// of so many attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types say what each is")]
pub struct RouteReport {
    pub rank: Rank,
    pub peer_rank: Rank,
    pub bytes: u64,
    pub path: Path,
    pub attempts: u32,
}

/// Why a pull or a push came to nothing.
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
    /// The ticket is of this very engine, whose blocks are here already.
    #[error(
        "the ticket is of this engine itself, so there is nothing to move: use the blocks that it leases, compute \
         the request here, or send it to another engine"
    )]
    OwnTicket,
    #[error("rank {rank} is not of this agent")]
    NotOurs { rank: Rank },
    #[error("no rank takes part")]
    NoRanks,
    /// More tokens are asked for than the ticket covers, or others than it opens.
    #[error("tokens {start}..{end} were asked for, the ticket covers {first}..{valid}")]
    Tokens { start: u64, end: u64, first: u64, valid: u64 },
    /// A job with this ticket and one of these ranks is under way.
    #[error("rank {rank} is busy with this ticket already")]
    UnderWay { rank: Rank },
    #[error("{limit} pulls and pushes are under way, and no more are allowed")]
    TooMany { limit: usize },
    #[error("it cannot be planned: {why}")]
    Plan { why: Text },
    /// It cannot come in this codec.
    #[error("it cannot come as {codec}: {why}")]
    Codec { codec: Codec, why: Text },
    #[error("agent {agent} could not be reached: {why}")]
    Unreachable {
        agent: AgentId,
        /// What came of the last attempt, with the address that was tried.
        why: Text,
    },
    /// An agent of the ticket does not talk to us, or we not to it.
    #[error("agent {agent}: {refusal}")]
    Hello { agent: AgentId, refusal: HelloRefusal },
    #[error("agent {agent} may not serve: its certificate lacks that role")]
    MayNotServe { agent: AgentId },
    #[error("agent {agent} is of deployment {found}, the ticket says {ticket}")]
    Deployment { agent: AgentId, found: DeploymentDigest, ticket: DeploymentDigest },
    /// An agent of the ticket has restarted: its leases are gone.
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
    /// An agent of the owner that shall push may not, or has tried to and was refused here.
    #[error("agent {agent} may not push into the blocks: {refusal}")]
    PushRefused { agent: AgentId, refusal: Refusal },
    /// The lease of the blocks has ended: of a pull, the owner has given up its push; of an invited push,
    /// the holder has, or the lease's time is over.
    #[error("the lease of the blocks has ended ({end})")]
    LeaseEnded { end: LeaseEnd },
    /// A route has failed for good, or too often.
    #[error("between rank {rank} here and {peer_rank} there, at attempt {attempts}: {failure}")]
    Failed { rank: Rank, peer_rank: Rank, attempts: u32, failure: Failure },
    #[error("it took longer than {timeout:?}{}", .waiting.as_ref().map_or(String::new(), |on| format!(": it waited for {on}")))]
    TimedOut { timeout: Duration, waiting: Option<Waiting> },
    /// The device of a rank here was lost, and with it what the blocks held.
    #[error("the device of rank {rank} is lost")]
    DeviceLost { rank: Rank },
    /// The device of a rank here has not done in time what it was asked to, and may still touch the blocks: they must not be
    /// used.
    #[error("the device of rank {rank} is not done with the blocks, which must not be used")]
    DeviceStalled { rank: Rank },
    #[error("it was cancelled")]
    Cancelled,
    #[error("the agent is shutting down")]
    ShuttingDown,
}

impl JobError {
    /// A word for counters and logs; `TransferError::kind` of agents lists them.
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

    /// What the peers of its routes are told.
    pub(crate) fn as_failure(&self) -> Failure {
        match self {
            JobError::DeviceLost { .. } | JobError::LeaseEnded { end: LeaseEnd::DeviceLost } => Failure::DeviceLost,
            JobError::DeviceStalled { .. } | JobError::LeaseEnded { end: LeaseEnd::DeviceStalled } => {
                Failure::DeviceStalled
            }
            _ => Failure::Cancelled,
        }
    }

    /// Whether the owner must not be told that the job is given up: it has said that the lease is not ours, so that a
    /// cancellation could end what belongs to others; or it does not talk to us, since our deployments do not fit.
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
