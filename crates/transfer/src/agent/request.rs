//! Requests of an agent's users.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::after::After;
use transload_layout::Rank;
use transload_plan::content::ContentDigest;
use transload_plan::ids::LeaseSetId;
use transload_plan::{Request, Tables};
use transload_wire::{PathSet, Ticket};

/// An object that is kept for as long as an agent may touch the blocks of a request.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// Describes a lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The lease set of the request, the same on all ranks.
    pub set: LeaseSetId,
    /// The rank that holds the blocks.
    pub rank: Rank,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// The content of the blocks, now or when the prefill is over.
    pub content: ContentDigest,
    /// The first token that moves: 0, except for a push of the end of a sequence.
    pub start: u64,
    /// The number of valid tokens, counted from position 0.
    pub valid_tokens: u64,
    /// How long the lease lives unless it is renewed or used.
    pub ttl: Duration,
    /// How long transfers can keep it alive.
    pub hard_bound: Duration,
    /// Whether the blocks hold everything already. Otherwise report [`ready`](super::LeaseControl::ready) and
    /// [`finish_prefill`](super::LeaseControl::finish_prefill).
    pub prefilled: bool,
    /// Work that must be done before the blocks are touched. For a lease of `prefilled` blocks this is the work that
    /// computes them. For blocks that are [opened](super::Agent::open) for writing it is the work that still reads
    /// them, and `open` returns after that.
    pub after: After,
    /// An owner of the blocks, which frees them when it is dropped. It is dropped when nothing touches the blocks any
    /// more, however the lease ends. Use it if no task waits for [`Lease::ended`](super::Lease::ended).
    pub keeper: Option<Keeper>,
}

impl LeaseRequest {
    /// Describes a lease of prefilled blocks for 60 seconds, and for ten minutes at most.
    pub fn new(set: LeaseSetId, rank: Rank, tables: Tables, content: ContentDigest, valid_tokens: u64) -> Self {
        Self {
            set,
            rank,
            tables,
            content,
            start: 0,
            valid_tokens,
            ttl: Duration::from_secs(60),
            hard_bound: Duration::from_secs(600),
            prefilled: true,
            after: After::default(),
            keeper: None,
        }
    }
}

/// Describes a pull.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// The ticket that authorises it.
    pub ticket: Ticket,
    /// The ranks of this agent that receive. They share the block tables.
    pub ranks: BTreeSet<Rank>,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// The tokens, and whether layers may move before the prefill is over.
    pub request: Request,
    /// The content that the source's blocks must have.
    pub content: ContentDigest,
    /// The acceptable paths: [`PathSet::QUIC`] and [`PathSet::LOCAL`] exclude all others.
    pub paths: PathSet,
    /// The time limit for the whole pull, including retries.
    pub timeout: Duration,
    /// Whether the leases are kept if the pull fails, so that it can be repeated with the same ticket. By default a
    /// failure cancels them on all ranks at once, and their blocks are free. Cancelling the pull always does.
    ///
    /// Repeat the pull soon: an agent closes a connection that it needs for nothing else
    /// ([`AgentOptions::keep_idle`](super::AgentOptions::keep_idle)), and then counts as lost.
    pub keep_leases: bool,
    /// A ticket for write leases, if the owner is to push instead. It is for
    /// [`Direction::Push`](crate::Direction), over the tokens that are pulled, and names all ranks of this
    /// deployment, each of which pulls with the same ticket. This agent opens its blocks under it for as long as the
    /// pull lasts.
    ///
    /// From then on the owner asks, and tries again. Its certificate needs the role `push`, and ours the role `serve`
    /// besides `pull`. A push that fails ends the leases, whatever `keep_leases` says. Leases that an earlier pull
    /// without `into` has tried and kept cannot be pushed any more: they are `consumed`.
    pub into: Option<Ticket>,
    /// Work that still uses the blocks. The pull waits for its end before it asks its peer for anything.
    pub after: After,
    /// An owner of the blocks, which frees them when it is dropped. It is dropped when nothing touches the blocks any
    /// more, however the pull ends, even if its future was dropped by a timeout or a `select!`.
    pub keeper: Option<Keeper>,
}

impl PullRequest {
    /// Describes a pull of the first `tokens` tokens, by any path, within five minutes.
    pub fn new(
        ticket: Ticket,
        ranks: impl IntoIterator<Item = Rank>,
        tables: Tables,
        content: ContentDigest,
        tokens: u64,
    ) -> Self {
        Self {
            ticket,
            ranks: ranks.into_iter().collect(),
            tables,
            request: Request::tokens(tokens),
            content,
            paths: PathSet::ANY,
            timeout: Duration::from_secs(300),
            keep_leases: false,
            into: None,
            after: After::default(),
            keeper: None,
        }
    }
}

/// Describes a push into the owner's blocks.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// The ticket that authorises it, for [`Direction::Push`](crate::Direction).
    pub ticket: Ticket,
    /// The ranks of this agent that send. They share the block tables.
    pub ranks: BTreeSet<Rank>,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// The tokens, which must be those of the ticket, and whether layers may move before the prefill is over.
    pub request: Request,
    /// The content of the blocks, now or when the prefill is over.
    pub content: ContentDigest,
    /// The acceptable paths, as in [`PullRequest::paths`].
    pub paths: PathSet,
    /// The time limit for the whole push, including retries.
    pub timeout: Duration,
    /// Whether the owner's blocks stay open if the push fails, as in [`PullRequest::keep_leases`].
    pub keep_leases: bool,
    /// Whether the blocks are complete already. Otherwise report [`ready`](super::TransferControl::ready)
    /// and [`finish_prefill`](super::TransferControl::finish_prefill).
    pub prefilled: bool,
    /// The work that computes `prefilled` blocks. They are not read before its end.
    pub after: After,
    /// An owner of the blocks, dropped when nothing touches them any more, as in [`PullRequest::keeper`].
    pub keeper: Option<Keeper>,
}

impl PushRequest {
    /// Describes a push of the first `tokens` tokens of complete blocks, by any path, within five minutes.
    pub fn new(
        ticket: Ticket,
        ranks: impl IntoIterator<Item = Rank>,
        tables: Tables,
        content: ContentDigest,
        tokens: u64,
    ) -> Self {
        Self {
            ticket,
            ranks: ranks.into_iter().collect(),
            tables,
            request: Request::tokens(tokens),
            content,
            paths: PathSet::ANY,
            timeout: Duration::from_secs(300),
            keep_leases: false,
            prefilled: true,
            after: After::default(),
            keeper: None,
        }
    }
}

/// The blocks of a lease or a job: block tables in the order of this agent's groups.
pub(super) type Blocks = Arc<Tables>;
