//! What users of an agent ask for.

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

/// Whatever shall live for as long as an agent may touch the blocks of a request.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// What to lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The lease set of the request, the same on all ranks.
    pub set: LeaseSetId,
    /// The rank whose blocks they are.
    pub rank: Rank,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// What they hold, or will hold when the prefill is over.
    pub content: ContentDigest,
    /// First token that moves: 0, but for a push into the end of a sequence.
    pub start: u64,
    /// How many tokens are valid, counted from position 0.
    pub valid_tokens: u64,
    /// How long the lease lives unless it is renewed or used.
    pub ttl: Duration,
    /// How long a transfer under way can keep it alive.
    pub hard_bound: Duration,
    /// Whether the blocks hold everything already. Otherwise tell [`ready`](super::LeaseControl::ready)
    /// and [`finish_prefill`](super::LeaseControl::finish_prefill).
    pub prefilled: bool,
    /// The blocks are not touched before this work is done. A lease of `prefilled` blocks waits for whoever computes them. Blocks
    /// that are [opened](super::Agent::open) to be written wait for whoever still reads them; `open` returns after that.
    pub after: After,
    /// Dropped when nothing touches the blocks any more, however the lease ends and whether or not
    /// anybody waits for that: where the blocks are to be given back without a word from
    /// [`Lease::ended`](super::Lease::ended). An owner of them, which frees them when it is dropped.
    pub keeper: Option<Keeper>,
}

impl LeaseRequest {
    /// A lease of finished blocks for 60 seconds, and ten minutes at most.
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

/// What to pull.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// What allows it.
    pub ticket: Ticket,
    /// The ranks of this agent that receive; all of them have the same block tables.
    pub ranks: BTreeSet<Rank>,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// Which tokens; by layer, if layers may come before the prefill is over.
    pub request: Request,
    /// What the blocks there are taken to hold.
    pub content: ContentDigest,
    /// The paths that may be taken: [`PathSet::QUIC`] and [`PathSet::LOCAL`] refuse any other.
    pub paths: PathSet,
    /// How long all of it may take, retries included.
    pub timeout: Duration,
    /// Whether the leases live on where it fails, so that it may be tried again with the same ticket while
    /// they do: soon, since an agent that needs a peer for nothing else hangs up after a while
    /// ([`AgentOptions::keep_idle`](super::AgentOptions::keep_idle)), and whoever has hung up is taken for
    /// lost. Otherwise a failure cancels them, on all ranks at once, and their blocks are free; so does
    /// cancelling in any case.
    pub keep_leases: bool,
    /// Whether the owner shall push instead, and into which lease set: a ticket for it, of
    /// [`Direction::Push`](transload_plan::ids::Direction), over the tokens that are pulled. It names all ranks of this
    /// deployment, each of which pulls with the same; the blocks here are opened under it for as long as the pull
    /// lasts. The owner is in charge from then on: it asks, and tries again. Its certificate needs the role
    /// `push`, and ours `serve` besides `pull`. A push that fails ends the leases, whatever `keep_leases` says;
    /// and leases that a pull without this has tried, and kept, cannot be pushed any more: they are `consumed`.
    pub into: Option<Ticket>,
    /// The blocks are not touched, and the peer is asked for nothing, before this work is done: whatever still reads them.
    pub after: After,
    /// Dropped when nothing touches the blocks any more, however the pull ends: also where its future was
    /// dropped, by a timeout or a `select!`, so that nobody hears of its end. An owner of the blocks, which
    /// frees them when it is dropped.
    pub keeper: Option<Keeper>,
}

impl PullRequest {
    /// The first `tokens` tokens, by any path, within five minutes.
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

/// What to push into the owner's blocks.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// What allows it, of [`Direction::Push`](transload_plan::ids::Direction).
    pub ticket: Ticket,
    /// The ranks of this agent that send; all of them have the same block tables.
    pub ranks: BTreeSet<Rank>,
    /// The blocks: one table for each group of the agent's deployment.
    pub tables: Tables,
    /// The tokens, which have to be those of the ticket; by layer, if layers may go before the prefill is over.
    pub request: Request,
    /// What the blocks hold, or will hold when the prefill is over.
    pub content: ContentDigest,
    /// The paths that may be taken, as in [`PullRequest::paths`].
    pub paths: PathSet,
    /// How long all of it may take, retries included.
    pub timeout: Duration,
    /// Whether the blocks of the owner stay open where it fails, as in [`PullRequest::keep_leases`].
    pub keep_leases: bool,
    /// Whether the blocks hold everything already. Otherwise tell [`ready`](super::TransferControl::ready)
    /// and [`finish_prefill`](super::TransferControl::finish_prefill).
    pub prefilled: bool,
    /// Blocks that are `prefilled` are not read before this work is done: whatever computes them.
    pub after: After,
    /// Dropped when nothing touches the blocks any more, as in [`PullRequest::keeper`].
    pub keeper: Option<Keeper>,
}

impl PushRequest {
    /// The first `tokens` tokens of finished blocks, by any path, within five minutes.
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

/// The blocks of a lease or a job: block tables in the order of the own document's groups.
pub(super) type Blocks = Arc<Tables>;
