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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::message::{Ask, Message, NoticeKind};
use super::path::{Path, PathSet};
use super::planner::{Planner, RouteAsk};
use super::refusal::{Failure, HelloRefusal, Refusal, Text};
use super::source::Source;
use super::transfer::{Role, Side, Transfer, Why};
use super::{Action, BlocksOf, ConnId, Flow, JobId, Machine, Timer};
use crate::content::ContentDigest;
use crate::ids::{
    AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, PlanDigest, Rank, TransferId,
};
use crate::moment::Moment;
use crate::ticket::{Claims, RankAddress, Ticket, TicketError};
use crate::wire::destination::Destination;

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
    /// Of a push: whether the blocks hold everything already. Otherwise
    /// [`Machine::job_ready`] tells how far the prefill has come, and
    /// [`Machine::job_prefilled`] that it is over. Of a pull: true.
    pub prefilled: bool,
    /// The blocks, given back by [`Action::JobDone`].
    pub blocks: B,
}

/// What a job has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// How many bytes have moved, of all routes.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// The routes.
    pub routes: Vec<RouteReport>,
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

/// Why a pull or a push came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The ticket is not one of this cluster's.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The ticket is of another cluster.
    #[error("the ticket is of cluster {theirs}, this is {ours}")]
    Cluster {
        /// The cluster here.
        ours: ClusterName,
        /// The ticket's.
        theirs: ClusterName,
    },
    /// The ticket is for somebody else.
    #[error("the ticket is for another agent")]
    Audience,
    /// A rank is not this agent's.
    #[error("rank {rank} is not of this agent")]
    NotOurs {
        /// The rank.
        rank: Rank,
    },
    /// No rank was named.
    #[error("no rank takes part")]
    NoRanks,
    /// More tokens are asked for than the ticket covers, or others than it opens.
    #[error("tokens {start}..{end} were asked for, the ticket covers {first}..{valid}")]
    Tokens {
        /// First token asked for.
        start: u64,
        /// End of the range asked for.
        end: u64,
        /// First token of the ticket.
        first: u64,
        /// End of the valid ones.
        valid: u64,
    },
    /// A job with this ticket and one of these ranks is under way.
    #[error("rank {rank} is busy with this ticket already")]
    UnderWay {
        /// The rank.
        rank: Rank,
    },
    /// As many jobs as allowed are under way.
    #[error("{limit} pulls and pushes are under way, and no more are allowed")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// It cannot be planned.
    #[error("it cannot be planned: {why}")]
    Plan {
        /// Why not.
        why: Text,
    },
    /// An agent of the ticket could not be reached.
    #[error("agent {agent} could not be reached")]
    Unreachable {
        /// Which.
        agent: AgentId,
    },
    /// An agent of the ticket does not talk to us, or we not to it.
    #[error("agent {agent}: {refusal}")]
    Hello {
        /// Which.
        agent: AgentId,
        /// Why not.
        refusal: HelloRefusal,
    },
    /// An agent of the ticket is of another deployment now.
    #[error("agent {agent} is of deployment {found}, the ticket says {ticket}")]
    Deployment {
        /// Which.
        agent: AgentId,
        /// What it is.
        found: DeploymentDigest,
        /// What the ticket says.
        ticket: DeploymentDigest,
    },
    /// An agent of the ticket has restarted: its leases are gone.
    #[error("agent {agent} has restarted since the ticket was made")]
    Restarted {
        /// Which.
        agent: AgentId,
        /// Its life now.
        found: Incarnation,
        /// The one that the ticket says.
        ticket: Incarnation,
    },
    /// An owner's rank refuses.
    #[error("rank {peer_rank} there refuses rank {rank}: {refusal}")]
    Refused {
        /// The local rank.
        rank: Rank,
        /// The owner's rank.
        peer_rank: Rank,
        /// Why.
        refusal: Refusal,
    },
    /// A route has failed for good, or too often.
    #[error("between rank {rank} here and {peer_rank} there, at attempt {attempts}: {failure}")]
    Failed {
        /// The local rank.
        rank: Rank,
        /// The peer's rank.
        peer_rank: Rank,
        /// How often it was tried.
        attempts: u32,
        /// Why it failed the last time.
        failure: Failure,
    },
    /// It took longer than allowed.
    #[error("it took longer than {timeout:?}")]
    TimedOut {
        /// What was allowed.
        timeout: Duration,
    },
    /// It was cancelled here.
    #[error("it was cancelled")]
    Cancelled,
    /// The agent is shutting down.
    #[error("the agent is shutting down")]
    ShuttingDown,
}

impl JobError {
    /// Whether the owner has said, of the lease itself, that it is not ours to use. Then there is
    /// nothing of ours to cancel, and something of others to break.
    fn is_not_ours(&self) -> bool {
        match self {
            JobError::Refused { refusal, .. } => matches!(
                refusal,
                Refusal::WrongPeer
                    | Refusal::DigestMismatch { .. }
                    | Refusal::Consumed
                    | Refusal::Superseded { .. }
                    | Refusal::Expired
                    | Refusal::Cancelled
                    | Refusal::PeerLost
            ),
            _ => false,
        }
    }
}

/// A job that was not begun. The blocks are given back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct JobRefused<B> {
    /// Why not.
    pub error: JobError,
    /// The blocks.
    pub blocks: B,
}

/// A job under way. Memory: about 600 bytes, the ticket's claims, and 100 bytes for each route.
#[derive(Debug)]
pub(crate) struct Job<B> {
    pub(crate) spec: JobSpec<B>,
    pub(crate) claims: Claims,
    started: Moment,
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
    Pausing,
    Trying(TransferId),
    Landed,
}

impl<B> Job<B> {
    fn address(&self, rank: Rank) -> Option<&RankAddress> {
        self.claims.ranks.get(rank.0 as usize)
    }

    fn is_push(&self) -> bool {
        self.claims.direction == Direction::Push
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
}

/// What the holder of a ticket does.
impl<B, P: Planner> Machine<B, P> {
    /// Begins to pull or to push.
    pub fn start(&mut self, now: Moment, spec: JobSpec<B>) -> Result<JobId, JobRefused<B>> {
        let claims = match self.check_job(&spec) {
            Ok(claims) => claims,
            Err(error) => {
                let blocks = spec.blocks;
                return Err(JobRefused { error, blocks });
            }
        };
        let id = JobId(self.next_number());
        self.timers.set(Timer::Job(id), now + spec.timeout);
        let job = Job {
            spec,
            claims,
            started: now,
            routes: None,
            progress: BTreeMap::new(),
            admitted: false,
            stop: None,
        };
        for address in job.agents() {
            self.hurry(address.agent.clone());
        }
        self.jobs.insert(id, job);
        self.advance(now, id);
        self.settle(now);
        Ok(id)
    }

    fn check_job(&self, spec: &JobSpec<B>) -> Result<Claims, JobError> {
        if self.draining {
            return Err(JobError::ShuttingDown);
        }
        if self.jobs.len() >= self.options.jobs {
            let limit = self.options.jobs;
            return Err(JobError::TooMany { limit });
        }
        let claims = self.open_ticket(&spec.ticket)?;
        if spec.ranks.is_empty() {
            return Err(JobError::NoRanks);
        }
        if let Some(&rank) = spec.ranks.iter().find(|r| !self.me.ranks.contains(r)) {
            return Err(JobError::NotOurs { rank });
        }
        let end = spec.start.saturating_add(spec.tokens);
        let covered = match claims.direction {
            Direction::Pull => spec.start >= claims.start && end <= claims.valid_tokens,
            Direction::Push => spec.start == claims.start && end == claims.valid_tokens,
        };
        if !covered {
            return Err(JobError::Tokens {
                start: spec.start,
                end,
                first: claims.start,
                valid: claims.valid_tokens,
            });
        }
        let same = self
            .jobs
            .values()
            .filter(|job| job.claims.set == claims.set);
        let mut busy = same.flat_map(|job| job.spec.ranks.intersection(&spec.ranks));
        match busy.next() {
            Some(&rank) => Err(JobError::UnderWay { rank }),
            None => Ok(claims),
        }
    }

    /// Opens a ticket that is to be used here.
    pub(crate) fn open_ticket(&self, ticket: &Ticket) -> Result<Claims, JobError> {
        let claims = ticket.open(&self.me.ticket_key)?;
        if claims.cluster != self.me.cluster {
            return Err(JobError::Cluster {
                ours: self.me.cluster.clone(),
                theirs: claims.cluster,
            });
        }
        if !claims.is_for(&self.me.agent, &self.me.deployment) {
            return Err(JobError::Audience);
        }
        Ok(claims)
    }

    /// Of a push: the first `tokens` tokens of a layer are ready to be read.
    pub fn job_ready(&mut self, id: JobId, rank: Rank, layer: u32, tokens: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.spec.prefilled
            || layer >= crate::lease::MAX_LAYERS
            || !job.spec.ranks.contains(&rank)
        {
            return;
        }
        let known = job.progress.entry((rank, layer)).or_insert(0);
        if tokens <= *known {
            return;
        }
        *known = tokens;
        for transfer in job.under_way(Some(rank)) {
            self.layer_ready(transfer, layer, tokens);
        }
    }

    /// Of a push: everything is ready to be read.
    pub fn job_prefilled(&mut self, now: Moment, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.spec.prefilled = true;
        for transfer in job.under_way(None) {
            self.all_ready(now, transfer);
        }
        self.settle(now);
    }

    /// Gives a job up. It is over when [`Action::JobDone`] says so.
    pub fn cancel_job(&mut self, now: Moment, id: JobId) {
        self.stop(now, id, JobError::Cancelled);
        self.settle(now);
    }

    /// Moves a job on, as far as it can go now.
    pub(crate) fn advance(&mut self, now: Moment, id: JobId) {
        if let Err(error) = self.plan(id).and_then(|()| self.check_peers(id)) {
            self.stop(now, id, error);
            return;
        }
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        if job.stop.is_some() {
            self.finish_if_still(now, id);
            return;
        }
        let addresses: Vec<_> = job.agents().into_iter().cloned().collect();
        let routes = job.routes.iter().flatten().enumerate();
        let idle = routes.filter(|(_, route)| route.state == RouteState::Idle);
        let idle: Vec<_> = idle
            .map(|(i, route)| (i, job.address(route.peer_rank).cloned()))
            .collect();
        for (i, address) in idle {
            if let Some(conn) = address.and_then(|address| self.connection(&address.agent)) {
                self.try_route(now, id, i, conn);
            }
        }
        for address in addresses {
            self.want(&address);
        }
        self.finish_if_landed(now, id);
    }

    /// Finds the routes, once the owner's deployment is known.
    fn plan(&mut self, id: JobId) -> Result<(), JobError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        if job.routes.is_some() || job.stop.is_some() {
            return Ok(());
        }
        let Some(ranks) = self.planner.ranks(&job.claims.owner) else {
            return Ok(());
        };
        let mut found = Vec::new();
        for &rank in &job.spec.ranks {
            let ask = RouteAsk {
                peer: job.claims.owner,
                rank,
                local_is_source: job.is_push(),
                start: job.spec.start,
                tokens: job.spec.tokens,
                by_layer: job.spec.by_layer,
            };
            let routes = self.planner.routes(&ask);
            let routes = routes.map_err(|why| JobError::Plan { why: why.into() })?;
            found.extend(routes.into_iter().map(|route| JobRoute {
                rank,
                peer_rank: route.peer_rank,
                bytes: route.bytes,
                digest: route.digest,
                state: RouteState::Idle,
                attempts: 0,
                failures: 0,
                path: Path::Quic,
                committed: false,
            }));
        }
        if ranks as usize != job.claims.ranks.len() {
            let why = format!(
                "the ticket names {} ranks, its deployment has {ranks}",
                job.claims.ranks.len()
            );
            return Err(JobError::Plan { why: why.into() });
        }
        job.routes = Some(found);
        Ok(())
    }

    /// Whether the agents that are connected are still those that the ticket means.
    fn check_peers(&self, id: JobId) -> Result<(), JobError> {
        let Some(job) = self.jobs.get(&id) else {
            return Ok(());
        };
        for address in job.agents() {
            let agent = &address.agent;
            let Some(peer) = self.connection(agent).and_then(|conn| self.peer(conn)) else {
                continue;
            };
            if !job.needs(agent) {
                continue;
            }
            if peer.holder.deployment != job.claims.owner {
                return Err(JobError::Deployment {
                    agent: agent.clone(),
                    found: peer.holder.deployment,
                    ticket: job.claims.owner,
                });
            }
            if peer.holder.incarnation != job.claims.incarnation && !fault!(self, AnyIncarnation) {
                return Err(JobError::Restarted {
                    agent: agent.clone(),
                    found: peer.holder.incarnation,
                    ticket: job.claims.incarnation,
                });
            }
        }
        Ok(())
    }

    fn try_route(&mut self, now: Moment, id: JobId, i: usize, conn: ConnId) {
        let (transfer, nonce) = self.draw();
        let Some(agent) = self.peer_agent(conn) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let push = job.is_push();
        let Some(route) = job.routes.as_mut().and_then(|routes| routes.get_mut(i)) else {
            return;
        };
        route.state = RouteState::Trying(transfer);
        route.attempts += 1;
        let (rank, peer_rank, bytes) = (route.rank, route.peer_rank, route.bytes);
        let (source, destination) = match push {
            true => (rank, peer_rank),
            false => (peer_rank, rank),
        };
        let spec = &job.spec;
        let paths = match spec.paths.and(self.planner.paths(&agent, push)) {
            // The peer refuses, and says so of what was wanted.
            none if none == PathSet::default() => spec.paths,
            some => some,
        };
        let ask = Ask {
            transfer,
            nonce,
            ticket: spec.ticket.clone(),
            source,
            destination,
            start: spec.start,
            tokens: spec.tokens,
            content: spec.content,
            plan: route.digest,
            lanes: spec.lanes,
            by_layer: spec.by_layer,
            paths,
            attempt: route.attempts,
        };
        let flow = Flow {
            transfer,
            nonce,
            conn,
            agent,
            peer: job.claims.owner,
            rank,
            peer_rank,
            start: spec.start,
            tokens: spec.tokens,
            by_layer: spec.by_layer,
            bytes,
            lanes: spec.lanes,
            path: None,
            blocks: BlocksOf::Job(id),
            all_readable: true,
            ready: Vec::new(),
        };
        let role = match push {
            true => Role::Source(Source::asking(bytes, spec.by_layer, spec.prefilled)),
            false => Role::Destination(Destination::asking(bytes, nonce)),
        };
        let message = match push {
            true => Message::Push(ask),
            false => Message::Pull(ask),
        };
        if !push {
            // Streams may overtake the answer, so be ready before asking.
            self.actions.push_back(Action::Receive(flow.clone()));
        }
        let attempt = Transfer {
            flow,
            side: Side::Job { job: id, route: i },
            role,
            under_way: !push,
        };
        self.transfers.insert(transfer, attempt);
        self.timers
            .set(Timer::Stall(transfer), now + self.options.stall);
        self.send(conn, message);
    }

    /// An owner has let one of the job's routes in, though it has to wait.
    pub(crate) fn route_admitted(&mut self, job: JobId) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.admitted = true;
        }
    }

    /// A route was let in, and this is its path.
    pub(crate) fn route_accepted(&mut self, job: JobId, route: usize, path: Path) {
        let Some(job) = self.jobs.get_mut(&job) else {
            return;
        };
        job.admitted = true;
        if let Some(route) = job.routes.as_mut().and_then(|routes| routes.get_mut(route)) {
            route.path = path;
        }
    }

    /// Of a push: a route has said its commit.
    pub(crate) fn route_committed(&mut self, job: JobId, route: usize) {
        let routes = self.jobs.get_mut(&job).and_then(|job| job.routes.as_mut());
        if let Some(route) = routes.and_then(|routes| routes.get_mut(route)) {
            route.committed = true;
        }
    }

    /// A route has landed.
    pub(crate) fn route_landed(&mut self, now: Moment, id: JobId, route: usize) {
        let routes = self.jobs.get_mut(&id).and_then(|job| job.routes.as_mut());
        if let Some(route) = routes.and_then(|routes| routes.get_mut(route)) {
            route.state = RouteState::Landed;
        }
        self.advance(now, id);
    }

    /// A route's attempt is over without success, and fenced.
    pub(crate) fn route_ended(&mut self, now: Moment, id: JobId, i: usize, why: Why) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let stopping = job.stop.is_some();
        let Some(route) = job.routes.as_mut().and_then(|routes| routes.get_mut(i)) else {
            return;
        };
        route.state = RouteState::Idle;
        if stopping {
            self.finish_if_still(now, id);
            return;
        }
        let (rank, peer_rank) = (route.rank, route.peer_rank);
        let pause = match why {
            // Our commit came through, and only the answer was lost.
            Why::Refused(Refusal::Consumed) if route.committed => {
                self.route_landed(now, id, i);
                return;
            }
            Why::Refused(refusal) if refusal.is_transient() => self.options.pause(route.attempts),
            Why::Refused(refusal) => {
                let error = JobError::Refused {
                    rank,
                    peer_rank,
                    refusal,
                };
                self.stop(now, id, error);
                return;
            }
            Why::Failed(failure) => {
                route.failures += 1;
                if failure.is_final() || route.failures >= self.options.attempts {
                    let attempts = route.attempts;
                    let error = JobError::Failed {
                        rank,
                        peer_rank,
                        attempts,
                        failure,
                    };
                    self.stop(now, id, error);
                    return;
                }
                self.options.pause(route.failures)
            }
        };
        route.state = RouteState::Pausing;
        self.timers.set(Timer::Route(id, i), now + pause);
        self.advance(now, id);
    }

    /// The pause of a route is over.
    pub(crate) fn route_due(&mut self, now: Moment, id: JobId, i: usize) {
        let routes = self.jobs.get_mut(&id).and_then(|job| job.routes.as_mut());
        if let Some(route) = routes.and_then(|routes| routes.get_mut(i))
            && route.state == RouteState::Pausing
        {
            route.state = RouteState::Idle;
        }
        self.advance(now, id);
    }

    /// Ends a job without success: as soon as nothing of it is under way any more.
    pub(crate) fn stop(&mut self, now: Moment, id: JobId, error: JobError) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.stop.is_some() {
            return;
        }
        job.stop = Some(error);
        let under_way = job.under_way(None);
        for (i, route) in (0..).zip(job.routes.iter_mut().flatten()) {
            if route.state == RouteState::Pausing {
                route.state = RouteState::Idle;
                self.timers.clear(&Timer::Route(id, i));
            }
        }
        for transfer in under_way {
            self.fail(now, transfer, Failure::Cancelled, true);
        }
        self.finish_if_still(now, id);
    }

    fn finish_if_still(&mut self, now: Moment, id: JobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let still = job.under_way(None).is_empty() || fault!(self, GiveBackBeforeFence);
        if job.stop.is_none() || !still {
            return;
        }
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        self.timers.clear(&Timer::Job(id));
        let Some(error) = job.stop.take() else {
            return;
        };
        let cancel = job.admitted || !error.is_not_ours();
        let (ticket, content) = (job.spec.ticket, Some(job.spec.content));
        self.actions.push_back(Action::JobDone {
            job: id,
            result: Err(error),
            blocks: job.spec.blocks,
        });
        if cancel {
            self.notify(
                now,
                ticket,
                job.claims,
                NoticeKind::Cancel { content },
                false,
            );
        }
    }

    fn finish_if_landed(&mut self, now: Moment, id: JobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let Some(routes) = &job.routes else {
            return;
        };
        if job.stop.is_some() || routes.iter().any(|r| r.state != RouteState::Landed) {
            return;
        }
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        self.timers.clear(&Timer::Job(id));
        let routes = job.routes.iter().flatten().map(|route| RouteReport {
            rank: route.rank,
            peer_rank: route.peer_rank,
            bytes: route.bytes,
            path: route.path,
            attempts: route.attempts,
        });
        let routes: Vec<_> = routes.collect();
        let report = JobReport {
            bytes: routes.iter().map(|route| route.bytes).sum(),
            took: now.since(job.started),
            routes,
        };
        self.actions.push_back(Action::JobDone {
            job: id,
            result: Ok(report),
            blocks: job.spec.blocks,
        });
        let done = NoticeKind::Done {
            ranks: job.spec.ranks.into_iter().collect(),
            content: job.spec.content,
        };
        self.notify(now, job.spec.ticket, job.claims, done, false);
    }

    /// `agent` could not be reached so often that waiting for it is over.
    pub(crate) fn stop_all_that_need(&mut self, now: Moment, agent: &AgentId, error: &JobError) {
        let needy = self.jobs.iter().filter(|(_, job)| job.needs(agent));
        let needy: Vec<_> = needy.map(|(id, _)| *id).collect();
        needy
            .into_iter()
            .for_each(|id| self.stop(now, id, error.clone()));
    }

    /// What is ready of a job's rank.
    pub(crate) fn job_progress(&self, id: JobId, rank: Rank) -> Vec<(u32, u64)> {
        let job = self.jobs.get(&id);
        let layers = job.into_iter().flat_map(|job| &job.progress);
        layers
            .filter(|((r, _), _)| *r == rank)
            .map(|((_, layer), tokens)| (*layer, *tokens))
            .collect()
    }
}

impl<B> Job<B> {
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
