//! Leases: a rank's promise to keep a request's blocks as they are until released or expired.
//!
//! One table serves both directions. Under a [`Pull`](Direction::Pull) lease the holder of the
//! ticket reads the blocks; under a [`Push`](Direction::Push) lease (a *write lease*) it writes them.
//! Either way the rules are these:
//!
//! - **First use binds.** The first admitted use ties the lease to one deployment and incarnation,
//!   its *holder*. Anybody else is refused, ticket or not.
//! - **A running transfer pins.** A pinned lease outlives its time to live, up to its hard bound.
//!   Nothing outlives the hard bound.
//! - **Pulled or pushed.** A lease that its holder wants pushed is not pulled from as well,
//!   goes to one set of blocks, and ends with that push, however it goes.
//! - **Ending takes two steps where it is pinned.** The table has transfers fenced, they are stopped and unpinned, and
//!   only then does the lease end and give the blocks.
//!   From the first step on the lease is not alive: nothing commits.
//! - **A lease ends once**, for one reason ([`LeaseEnd`]), and its blocks are given back
//!   with that event, by value.
//! - **Only the owner's monotonic clock ends a lease.** No time of another machine is compared.
//!
//! What a lease is used *for*, messages and streams, is not known here; see [`crate`].

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

/// Names one lease: the set, and the rank whose blocks it holds.
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

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseEnd {
    /// Every rank of the holder said that it is done. Of a push: and everything has landed.
    Completed,
    /// The owner or the holder gave up.
    Cancelled,
    /// Its time was over.
    Expired,
    /// The holder restarted, or was away for longer than the grace.
    PeerLost,
    /// The device that has the blocks was lost.
    DeviceLost,
    /// The device that has the blocks does not end what it was asked to do with them.
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

/// What to keep, for how long, and under which content.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSpec {
    /// Set and rank.
    pub key: LeaseKey,
    /// Whether the holder reads the blocks or writes them.
    pub direction: Direction,
    /// What the blocks hold once the prefill is finished, or shall hold once pushed.
    pub content: ContentDigest,
    /// First token that moves. Of a pull any token from here on can be asked for; a push moves
    /// exactly `start..valid_tokens`.
    pub start: u64,
    /// How many tokens are valid in the end, counted from position 0.
    pub valid_tokens: u64,
    /// How long the lease lives without being renewed or used.
    pub ttl: Duration,
    /// How long after the opening (or after the owner's last renewal) a transfer can keep it alive.
    pub hard_bound: Duration,
    /// Whether the blocks hold everything already. Otherwise [`Machine::ready`](crate::Machine::ready) tells how far
    /// the prefill has come, and [`finish_prefill`](crate::Machine::finish_prefill) that it is over. Of a push: true.
    pub prefilled: bool,
}

/// Bounds of an agent's leases.
#[derive(Clone, Debug)]
pub struct LeaseLimits {
    /// Most leases that are open at a time. A lease takes about 500 bytes and 150 more for each
    /// rank of its holder.
    pub leases: usize,
    /// Of how many ended leases the table remembers how they ended, the latest ones: 72 bytes each.
    /// A pull that comes later is told that the lease is unknown.
    pub ended: usize,
    /// How long a holder may be away in the midst of its use before the lease ends as
    /// [`PeerLost`](LeaseEnd::PeerLost).
    pub peer_grace: Duration,
}

impl Default for LeaseLimits {
    fn default() -> Self {
        Self { leases: 65_536, ended: 16_384, peer_grace: Duration::from_secs(10) }
    }
}

/// Whether the tokens from one on, up to so many, cover a request: any part of them for a pull, all of them for a push.
pub(crate) fn covers(direction: Direction, (start, end): (u64, u64), request: &Request) -> bool {
    match direction {
        Direction::Pull => request.start >= start && request.end() <= end,
        Direction::Push => request.start == start && request.end() == end,
    }
}

/// The deployment that a lease is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) deployment: DeploymentDigest,
    pub(crate) incarnation: Incarnation,
    /// How many ranks it has; each must say that it is done.
    pub(crate) ranks: u32,
}

/// What somebody wants to do with a lease.
#[derive(Clone, Debug)]
pub(crate) struct LeaseUse<'a> {
    /// The agent that asks, and the deployment it speaks for.
    pub(crate) agent: &'a AgentId,
    pub(crate) holder: Holder,
    /// The rank of that deployment.
    pub(crate) rank: Rank,
    /// Counts the attempts for this pair of ranks, from 1.
    pub(crate) attempt: u32,
    /// The transfer that is to pin the lease.
    pub(crate) transfer: TransferId,
    /// What the asker takes the content to be.
    pub(crate) content: ContentDigest,
    pub(crate) request: Request,
}

/// A holder's wish to have a lease's blocks pushed into its own; asked for as any [`LeaseUse`] is.
#[derive(Clone, Debug)]
pub(crate) struct LeasePush<'a> {
    pub(crate) agent: &'a AgentId,
    pub(crate) holder: Holder,
    /// What is to pin the lease while the push is under way.
    pub(crate) pin: TransferId,
    /// The set of the blocks that are to be written.
    pub(crate) into: LeaseSetId,
    pub(crate) content: ContentDigest,
    pub(crate) request: Request,
}

/// A holder's word that some of its ranks are done; said as a [`LeaseUse`] is asked for.
#[derive(Clone, Debug)]
pub(crate) struct LeaseDone<'a> {
    pub(crate) agent: &'a AgentId,
    pub(crate) holder: Holder,
    pub(crate) ranks: &'a [Rank],
    pub(crate) content: &'a ContentDigest,
    /// Of a push, the ranks that must have written for these blocks to be whole; else none.
    pub(crate) needed: &'a BTreeSet<Rank>,
}

/// Why a lease cannot be opened. The blocks are given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease {key} cannot be opened: {reason}")]
pub struct OpenError<B> {
    /// Which lease.
    pub key: LeaseKey,
    /// Why not.
    pub reason: OpenFault,
    /// What was to be leased.
    pub blocks: B,
}

/// What stands against opening a lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum OpenFault {
    /// A lease of this set and rank is open.
    #[error("it is open already")]
    Open,
    /// There was such a lease, and a set is never used twice.
    #[error("it has ended already ({end})")]
    Ended { end: LeaseEnd },
    /// [`LeaseLimits::leases`] are open.
    #[error("{limit} leases are open, and no more are allowed")]
    TooMany { limit: usize },
    /// The range of tokens is upside down.
    #[error("tokens from {start} on, but only {valid_tokens} are valid")]
    Tokens { start: u64, valid_tokens: u64 },
    /// The rank is not one of this agent's.
    #[error("rank {rank} is not of this agent")]
    NotOurs { rank: Rank },
    /// The agent is shutting down.
    #[error("the agent is shutting down")]
    ShuttingDown,
    /// The device that has the memory of the rank was lost.
    #[error("the device of rank {rank} is lost")]
    DeviceLost { rank: Rank },
}

/// Why the owner cannot do something with its lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LeaseError {
    /// There is no such lease, or no more.
    #[error("no lease {key} is open")]
    NotOpen { key: LeaseKey },
    /// More tokens are said to be ready than the lease was opened for.
    #[error("{tokens} tokens of layer {layer} are said to be ready, but only {valid_tokens} are leased")]
    Tokens { layer: u32, tokens: u64, valid_tokens: u64 },
    /// A layer's number is absurd.
    #[error("layer {layer} is beyond the {limit} layers that progress is kept for")]
    Layer { layer: u32, limit: u32 },
}

/// Why a lease is not to be used so, or not by this peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UseError {
    /// No such lease is known, now or lately.
    Unknown,
    /// It has ended, or is ending.
    Ended { end: LeaseEnd },
    /// It is for the other direction.
    Direction { leased: Direction },
    /// The blocks hold something else than was stated.
    Content,
    /// It does not cover the tokens asked for, up to `asked`.
    Tokens { start: u64, valid_tokens: u64, asked: u64 },
    /// It is bound to another deployment, or to another life of it.
    Holder,
    /// The rank is not one that the asker can speak for.
    Rank { rank: Rank },
    /// This rank has had it already.
    Consumed { rank: Rank },
    /// The blocks are being pushed.
    Pushed,
    /// A later attempt of this rank is known.
    Superseded { latest: u32 },
}

/// What the table tells its caller.
#[derive(Debug)]
pub(crate) enum LeaseEvent<B> {
    /// Somebody with a ticket asks for the lease for the first time, or renews it: it is no longer unclaimed.
    Claimed { key: LeaseKey },
    /// The lease is ending: stop these transfers, then [`unpin`](LeaseTable::unpin) each; or the push that has
    /// pinned it, then say that it is [over](LeaseTable::push_over).
    Fence { end: LeaseEnd, transfers: BTreeSet<TransferId> },
    /// The lease has ended, nothing touches the blocks any more, and here they are.
    Ended { key: LeaseKey, end: LeaseEnd, blocks: B },
}

#[cfg(test)]
mod tests;
