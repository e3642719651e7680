//! Jobs: what the holder of a ticket does, all its routes together.
//!
//! ```text
//!                  ┌──────────── pause ◄───────────┐
//!                  ▼                               │ failed and fenced, or busy;
//!  ┌──────────┐  ┌──────┐ connected  ┌────────┐    │ may be tried again
//!  │ planning ├─►│ Idle ├───────────►│ Trying ├────┘
//!  └──────────┘  └──────┘            └───┬──┬─┘
//!   (the job)     (a route)       landed │  │ refused, or failed for good
//!                                        ▼  ▼
//!                         all landed:  done  stop: every other route is aborted and fenced
//!                                        │  │
//!                              notice Done  notice Cancel, to every rank's agent
//! ```
//!
//! The job has succeeded only when every route of every local rank has landed, and it gives its
//! blocks back only when no route has anything under way any more.
//!
//! A pull can have its owner push instead (`invited.rs`).

mod check;
mod error;
mod invited;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::awaited::Awaited;
use super::held::Held;
use super::peers::Dialler;
use crate::content::ContentDigest;
use crate::ids::{AgentId, Direction, PlanDigest, Rank, TransferId};
use crate::moment::Moment;
use crate::path::{Path, PathSet};
use crate::ticket::{Claims, RankAddress, Ticket};

pub use error::JobError;
pub(crate) use invited::Invited;

/// What to pull or push. Which of the two, the ticket says.
#[derive(Clone, Debug)]
pub struct JobSpec<B> {
    /// The ticket.
    pub ticket: Ticket,
    /// The local ranks that take part, all with these blocks.
    pub ranks: BTreeSet<Rank>,
    /// First token; of a push, the one in the ticket.
    pub start: u64,
    /// How many tokens from there on.
    pub tokens: u64,
    /// What the content is taken to be.
    pub content: ContentDigest,
    /// How many lanes to use for each route.
    pub lanes: u16,
    /// Whether bytes may move before the prefill is over, layer by layer.
    pub by_layer: bool,
    /// The paths that may be taken.
    pub paths: PathSet,
    /// How long all of it may take.
    pub timeout: Duration,
    /// Whether the leases live on where this fails, so that it may be tried again while they do.
    /// Otherwise they are cancelled.
    pub keep_leases: bool,
    /// Of a push: whether the blocks hold everything already. Otherwise
    /// [`Machine::job_ready`](super::Machine::job_ready) tells how far the prefill has come, and
    /// [`Machine::job_prefilled`](super::Machine::job_prefilled) that it is over. Of a pull: true.
    pub prefilled: bool,
    /// Of a pull: a ticket that opens these blocks, if the owner shall push into them. It names all ranks
    /// of this deployment, each of which pulls with the same; the ranks here are opened under it.
    pub into: Option<Ticket>,
    /// The blocks, given back by [`Action::JobDone`](super::Action::JobDone).
    pub blocks: B,
}

impl<B> JobSpec<B> {
    fn with_blocks<C>(self, held: impl FnOnce(B) -> C) -> JobSpec<C> {
        JobSpec {
            ticket: self.ticket,
            ranks: self.ranks,
            start: self.start,
            tokens: self.tokens,
            content: self.content,
            lanes: self.lanes,
            by_layer: self.by_layer,
            paths: self.paths,
            timeout: self.timeout,
            keep_leases: self.keep_leases,
            prefilled: self.prefilled,
            into: self.into,
            blocks: held(self.blocks),
        }
    }
}

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

impl JobReport {
    fn new(now: Moment, started: Moment, moved: Option<Moment>, routes: Vec<RouteReport>) -> Self {
        Self {
            bytes: routes.iter().map(|route| route.bytes).sum(),
            took: now.since(started),
            queued: moved.unwrap_or(now).since(started),
            routes,
        }
    }
}

/// What one route has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteReport {
    /// The local rank.
    pub rank: Rank,
    /// The peer's rank.
    pub peer_rank: Rank,
    /// How many bytes have moved.
    pub bytes: u64,
    /// How.
    pub path: Path,
    /// At which attempt.
    pub attempts: u32,
}

/// A job that was not begun. The blocks are given back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct JobRefused<B> {
    /// Why not.
    pub error: Box<JobError>,
    /// The blocks.
    pub blocks: B,
}

/// A job under way. Memory: about 600 bytes, the ticket's claims, and 100 bytes for each route.
#[derive(Debug)]
pub(crate) struct Job<B> {
    pub(crate) spec: JobSpec<Held<B>>,
    pub(crate) claims: Claims,
    pub(crate) started: Moment,
    /// When its first byte moved.
    moved: Option<Moment>,
    routes: Option<Vec<JobRoute>>,
    /// Layers and tokens that are ready, by local rank (pushes only).
    progress: BTreeMap<(Rank, u32), u64>,
    /// Whether some owner has let us in: then there is something to cancel.
    admitted: bool,
    stop: Option<JobError>,
}

#[derive(Debug)]
struct JobRoute {
    rank: Rank,
    peer_rank: Rank,
    bytes: u64,
    digest: PlanDigest,
    state: RouteState,
    /// Attempts, each with a number and a transfer of its own.
    attempts: u32,
    /// Those of them that failed.
    failures: u32,
    path: Path,
    /// Of a push: whether a commit was sent, so that it may have landed without our knowing.
    committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteState {
    Idle,
    Pausing {
        /// Whether the owner was busy, rather than that an attempt has failed.
        busy: bool,
    },
    Trying(TransferId),
    Landed,
}

impl<B> Job<B> {
    fn address(&self, rank: Rank) -> Option<&RankAddress> {
        self.claims.ranks.get(rank.0 as usize)
    }

    /// Whether a job that has failed so has leases of the owner's to cancel.
    fn cancels(error: &JobError, keep_leases: bool, admitted: bool) -> bool {
        let keep = keep_leases && *error != JobError::Cancelled;
        !keep && (admitted || !error.is_not_ours())
    }

    fn is_push(&self) -> bool {
        self.claims.direction == Direction::Push
    }

    /// Who connects to the agents of the ticket. That of an invited push a peer has chosen.
    pub(crate) fn dialler(&self) -> Dialler {
        match self.spec.blocks {
            Held::Own(_) => Dialler::Us,
            Held::Of(_) => Dialler::Peer,
        }
    }

    /// The agents that the job talks to now.
    fn agents(&self) -> BTreeSet<&RankAddress> {
        match &self.routes {
            Some(routes) => routes
                .iter()
                .filter_map(|r| self.address(r.peer_rank))
                .collect(),
            None => self.claims.ranks.first().into_iter().collect(),
        }
    }

    /// Whether the job cannot go on without `agent`.
    pub(crate) fn needs(&self, agent: &AgentId) -> bool {
        let mut routes = self.routes.iter().flatten();
        match &self.routes {
            None => self.agents().iter().any(|address| address.agent == *agent),
            Some(_) => routes.any(|route| {
                let address = self.address(route.peer_rank);
                route.state != RouteState::Landed && address.is_some_and(|a| a.agent == *agent)
            }),
        }
    }

    /// Whether the job wants to stay connected to `agent`. Also where all is landed: an owner ends
    /// the leases of a holder that it takes for lost.
    pub(crate) fn wants(&self, agent: &AgentId) -> bool {
        self.stop.is_none() && self.agents().iter().any(|address| address.agent == *agent)
    }

    /// The agent of the first route that has not landed, the attempt at it, and what it waits for without one.
    pub(crate) fn first_open(&self) -> Option<(&RankAddress, Option<TransferId>, Awaited)> {
        let Some(routes) = &self.routes else {
            return Some((self.claims.ranks.first()?, None, Awaited::Attempt));
        };
        let mut open = routes.iter().filter(|r| r.state != RouteState::Landed);
        let route = open.next()?;
        let trying = match route.state {
            RouteState::Trying(transfer) => Some(transfer),
            _ => None,
        };
        let idle = match route.state {
            RouteState::Pausing { busy: true } => Awaited::Turn,
            _ => Awaited::Attempt,
        };
        Some((self.address(route.peer_rank)?, trying, idle))
    }

    /// The transfers under way, of one rank or of all.
    fn under_way(&self, rank: Option<Rank>) -> Vec<TransferId> {
        let routes = self.routes.iter().flatten();
        let routes = routes.filter(|route| rank.is_none_or(|rank| rank == route.rank));
        let trying = routes.filter_map(|route| match route.state {
            RouteState::Trying(transfer) => Some(transfer),
            _ => None,
        });
        trying.collect()
    }
}
