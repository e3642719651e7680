//! Leases: a rank's promise to keep a request's blocks as they are until released or expired.
//!
//! One table serves both directions. Under a [`Pull`](Direction::Pull) lease the holder of the
//! ticket reads the blocks; under a [`Push`](Direction::Push) lease (a *write lease*) it writes them.
//! Either way the rules are these:
//!
//! - **First use binds.** The first admitted use ties the lease to one deployment and incarnation, its *holder*. Every
//!   other agent is refused, even with the ticket.
//! - **A running transfer pins.** A pinned lease outlives its time to live, up to its hard bound. Nothing outlives the
//!   hard bound.
//! - **Pulled or pushed.** A lease that its holder wants pushed cannot be pulled from as well. It is pushed to one set
//!   of blocks, and ends with that push, whatever its outcome.
//! - **A pinned lease ends in two steps.** The table first has its transfers fenced. When they are stopped and
//!   unpinned, the lease ends and returns its blocks. From the first step on the lease is not alive: nothing commits.
//! - **A lease ends once**, for one reason ([`LeaseEnd`]), and its blocks are returned with that event, by value.
//! - **Only the owner's monotonic clock ends a lease.** Times of other machines are never compared.
//!
//! This module does not know what a lease is used *for*, that is, messages and streams; see [`crate`].

mod record;
mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use transload_plan::Request;
use transload_plan::content::ContentDigest;
use transload_plan::ids::{AgentId, DeploymentDigest, Direction, Incarnation, LeaseSetId, Rank, TransferId};

pub(crate) use table::{LeaseTable, MAX_LAYERS};

/// Identifies a lease: the set, and the rank whose blocks it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The lease set of the request.
    pub set: LeaseSetId,
    /// The rank of the owner's deployment.
    pub rank: Rank,
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set, self.rank)
    }
}

/// The reason why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseEnd {
    /// Every rank of the holder said that it is done. For a push, everything has landed too.
    Completed,
    /// The owner or the holder gave up.
    Cancelled,
    /// Its time to live or its hard bound was over.
    Expired,
    /// The holder restarted, or was disconnected for longer than the grace period.
    PeerLost,
    /// The device that holds the blocks was lost.
    DeviceLost,
    /// The device that holds the blocks did not finish its work on them in time.
    DeviceStalled,
}

impl fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeaseEnd::Completed => "completed",
            LeaseEnd::Cancelled => "cancelled",
            LeaseEnd::Expired => "expired",
            LeaseEnd::PeerLost => "peer lost",
            LeaseEnd::DeviceLost => "device lost",
            LeaseEnd::DeviceStalled => "device stalled",
        })
    }
}

/// Describes a lease: the blocks' content, and how long they are kept.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSpec {
    /// The set and the rank.
    pub key: LeaseKey,
    /// Whether the holder reads the blocks or writes them.
    pub direction: Direction,
    /// The content of the blocks once the prefill is finished, or once they are pushed.
    pub content: ContentDigest,
    /// The first token that moves. A pull may ask for any tokens from here on; a push moves exactly
    /// `start..valid_tokens`.
    pub start: u64,
    /// The number of tokens that will be valid in the end, counted from position 0.
    pub valid_tokens: u64,
    /// The time that the lease lives without being renewed or used.
    pub ttl: Duration,
    /// The longest time for which transfers can keep the lease alive, counted from its opening or the owner's last
    /// renewal.
    pub hard_bound: Duration,
    /// Whether the blocks hold everything already; always true for a push. Otherwise
    /// [`Machine::ready`](crate::Machine::ready) reports the progress of the prefill, and
    /// [`finish_prefill`](crate::Machine::finish_prefill) its end.
    pub prefilled: bool,
}

/// Limits of an agent's leases.
#[derive(Clone, Debug)]
pub struct LeaseLimits {
    /// The most open leases. A lease takes about 500 bytes, and 150 more for each rank of its holder.
    pub leases: usize,
    /// The number of ended leases whose end is remembered, the latest ones, at 72 bytes each. A pull from an older one
    /// is told that the lease is unknown.
    pub ended: usize,
    /// How long a holder may be disconnected while it uses a lease before the lease ends as
    /// [`PeerLost`](LeaseEnd::PeerLost).
    pub peer_grace: Duration,
}

impl Default for LeaseLimits {
    fn default() -> Self {
        Self { leases: 65_536, ended: 16_384, peer_grace: Duration::from_secs(10) }
    }
}

/// Returns whether the token range `start..end` of a lease covers a request: a pull may ask for a part of it, a push
/// must move all of it.
pub(crate) fn covers(direction: Direction, (start, end): (u64, u64), request: &Request) -> bool {
    match direction {
        Direction::Pull => request.start >= start && request.end() <= end,
        Direction::Push => request.start == start && request.end() == end,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) deployment: DeploymentDigest,
    pub(crate) incarnation: Incarnation,
    /// The number of its ranks, each of which must say that it is done.
    pub(crate) ranks: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct LeaseUse<'a> {
    pub(crate) agent: &'a AgentId,
    pub(crate) holder: Holder,
    pub(crate) rank: Rank,
    /// The number of the attempt for this pair of ranks, from 1.
    pub(crate) attempt: u32,
    pub(crate) transfer: TransferId,
    pub(crate) content: ContentDigest,
    pub(crate) request: Request,
}

/// A holder's request to have a lease's blocks pushed into its own. The fields are as in [`LeaseUse`].
#[derive(Clone, Debug)]
pub(crate) struct LeasePush<'a> {
    pub(crate) agent: &'a AgentId,
    pub(crate) holder: Holder,
    /// The id that pins the lease during the push.
    pub(crate) pin: TransferId,
    /// The set of the blocks that the push writes.
    pub(crate) into: LeaseSetId,
    pub(crate) content: ContentDigest,
    pub(crate) request: Request,
}

/// A holder's statement that some of its ranks are done. The fields are as in [`LeaseUse`].
#[derive(Clone, Debug)]
pub(crate) struct LeaseDone<'a> {
    pub(crate) agent: &'a AgentId,
    pub(crate) holder: Holder,
    pub(crate) ranks: &'a [Rank],
    pub(crate) content: &'a ContentDigest,
    /// For a push, the ranks that must have written to make these blocks complete; otherwise empty.
    pub(crate) needed: &'a BTreeSet<Rank>,
}

/// A lease could not be opened. The error returns the blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease {key} cannot be opened: {reason}")]
#[non_exhaustive]
pub struct OpenError<B> {
    /// The key of the lease.
    pub key: LeaseKey,
    /// The reason.
    pub reason: OpenFault,
    /// The blocks that were to be leased.
    pub blocks: B,
}

/// The reason why a lease cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum OpenFault {
    /// A lease of this set and rank is open.
    #[error("it is open already")]
    Open,
    /// There was such a lease; a set is never used twice.
    #[error("it has ended already ({end})")]
    Ended { end: LeaseEnd },
    /// [`LeaseLimits::leases`] are open.
    #[error("{limit} leases are open, and no more are allowed")]
    TooMany { limit: usize },
    /// The range of tokens ends before it begins.
    #[error("tokens from {start} on, but only {valid_tokens} are valid")]
    Tokens { start: u64, valid_tokens: u64 },
    /// The rank is not one of this agent's.
    #[error("rank {rank} is not of this agent")]
    NotOurs { rank: Rank },
    /// The agent is shutting down.
    #[error("the agent is shutting down")]
    ShuttingDown,
    /// The device that holds the rank's memory was lost.
    #[error("the device of rank {rank} is lost")]
    DeviceLost { rank: Rank },
}

/// The reason why an operation of the owner on its lease fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LeaseError {
    /// The lease is unknown, or has ended.
    #[error("no lease {key} is open")]
    NotOpen { key: LeaseKey },
    /// More tokens were reported ready than the lease covers.
    #[error("{tokens} tokens of layer {layer} are said to be ready, but only {valid_tokens} are leased")]
    Tokens { layer: u32, tokens: u64, valid_tokens: u64 },
    /// The layer number is higher than any model's.
    #[error("layer {layer} is beyond the {limit} layers that progress is kept for")]
    Layer { layer: u32, limit: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UseError {
    /// The lease is not open, and its end is not remembered.
    Unknown,
    /// It has ended, or is ending.
    Ended { end: LeaseEnd },
    /// It is for the other direction.
    Direction { leased: Direction },
    /// The blocks hold other content than was stated.
    Content,
    /// It does not cover the requested tokens, up to `asked`.
    Tokens { start: u64, valid_tokens: u64, asked: u64 },
    /// It is bound to another deployment, or to another life of it.
    Holder,
    /// The asker may not speak for this rank.
    Rank { rank: Rank },
    /// This rank has used the lease already.
    Consumed { rank: Rank },
    /// The blocks are being pushed.
    Pushed,
    /// This rank has made a later attempt.
    Superseded { latest: u32 },
}

#[derive(Debug)]
pub(crate) enum LeaseEvent<B> {
    /// The lease was claimed: a ticket holder used or renewed it for the first time.
    Claimed { key: LeaseKey },
    /// The lease is ending. Stop these transfers and [`unpin`](LeaseTable::unpin) each. If a push pins the lease, stop
    /// that and report [`push_over`](LeaseTable::push_over).
    Fence { end: LeaseEnd, transfers: BTreeSet<TransferId> },
    /// The lease has ended, and nothing touches the returned blocks any more.
    Ended { key: LeaseKey, end: LeaseEnd, blocks: B },
}

#[cfg(test)]
mod tests;
