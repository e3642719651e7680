//! Jobs that move bytes by themselves: their routes, and the attempts at each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Job, Jobs, Phase};
use crate::ids::{AgentId, Direction, PlanDigest, Rank, TransferId};
use crate::path::negotiation::Way;
use crate::path::{Path, PathSet};
use crate::ticket::{Claims, RankAddress};
use crate::wire::action::{BlocksOf, Flow};
use crate::wire::awaited::Awaited;
use crate::wire::context::Timer;
use crate::wire::flows::transfer::Transfer;
use crate::wire::ground::Ground;
use crate::wire::held::Held;
use crate::wire::ids::{ConnId, JobId};
use crate::wire::message::{Ask, Message};
use crate::wire::news::{Side, Why};
use crate::wire::options::Options;
use crate::wire::outcome::{JobError, RouteReport};
use crate::wire::owner::check_places_of_one;
use crate::wire::planner::{PlanAsk, Planned, Planner};
use crate::wire::refusal::{Failure, Refusal};

/// As many attempts as an owner may say that there were: more are not to be reached in the life of a lease.
const MOST_ATTEMPTS: u32 = 1 << 20;

/// The routes of a job.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Known once the owner's deployment is.
    routes: Option<Vec<JobRoute>>,
    /// Layers and tokens that are ready, by local rank (pushes only).
    progress: BTreeMap<(Rank, u32), u64>,
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

/// What follows from the end of an attempt.
enum Next {
    /// It has landed after all.
    Landed,
    /// It is tried again after a pause.
    Pause(std::time::Duration),
    Stop(JobError),
}

impl JobRoute {
    fn trying(&self) -> Option<TransferId> {
        match self.state {
            RouteState::Trying(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// What follows from the end of an attempt without success.
    fn ended(&mut self, options: &Options, why: Why) -> Next {
        let (rank, peer_rank) = (self.rank, self.peer_rank);
        match why {
            // Our commit came through, and only the answer was lost.
            Why::Refused(Refusal::Consumed) if self.committed => Next::Landed,
            Why::Refused(refusal) if refusal.is_transient() => {
                Next::Pause(options.pause(self.attempts))
            }
            // An earlier job of ours, which has left the leases alone, has tried as often.
            Why::Refused(Refusal::Superseded { latest })
                if (self.attempts..MOST_ATTEMPTS).contains(&latest)
                    && self.failures + 1 < options.attempts =>
            {
                self.failures += 1;
                self.attempts = latest;
                Next::Pause(options.pause(self.failures))
            }
            Why::Refused(refusal) => Next::Stop(JobError::Refused {
                rank,
                peer_rank,
                refusal,
            }),
            Why::Failed(failure) => {
                self.failures += 1;
                match failure.is_final() || self.failures >= options.attempts {
                    true => Next::Stop(JobError::Failed {
                        rank,
                        peer_rank,
                        attempts: self.attempts,
                        failure,
                    }),
                    false => Next::Pause(options.pause(self.failures)),
                }
            }
        }
    }
}

impl Own {
    /// The agents that the job talks to now; or only those without which it cannot go on.
    pub(super) fn agents<'a>(&self, claims: &'a Claims, needed: bool) -> BTreeSet<&'a RankAddress> {
        let Some(routes) = &self.routes else {
            return claims.ranks.first().into_iter().collect();
        };
        let routes = routes.iter();
        let routes = routes.filter(|route| !needed || route.state != RouteState::Landed);
        let agents = routes.filter_map(|route| address(claims, route.peer_rank));
        agents.collect()
    }

    /// The agent of the first route that has not landed, the attempt at it, and what it waits for without one.
    pub(super) fn first_open<'a>(
        &self,
        claims: &'a Claims,
    ) -> Option<(&'a RankAddress, Option<TransferId>, Awaited)> {
        let Some(routes) = &self.routes else {
            return Some((claims.ranks.first()?, None, Awaited::Attempt));
        };
        let mut open = routes.iter().filter(|r| r.state != RouteState::Landed);
        let route = open.next()?;
        let idle = match route.state {
            RouteState::Pausing { busy: true } => Awaited::Turn,
            _ => Awaited::Attempt,
        };
        Some((address(claims, route.peer_rank)?, route.trying(), idle))
    }

    /// The transfers under way, of one rank or of all.
    pub(super) fn under_way(&self, rank: Option<Rank>) -> Vec<TransferId> {
        let routes = self.routes.iter().flatten();
        let routes = routes.filter(|route| rank.is_none_or(|rank| rank == route.rank));
        routes.filter_map(JobRoute::trying).collect()
    }

    pub(super) fn has_landed(&self) -> bool {
        let landed = |routes: &Vec<JobRoute>| routes.iter().all(|r| r.state == RouteState::Landed);
        self.routes.as_ref().is_some_and(landed)
    }

    pub(super) fn report(self) -> Vec<RouteReport> {
        let routes = self.routes.into_iter().flatten();
        let routes = routes.map(|route| RouteReport {
            rank: route.rank,
            peer_rank: route.peer_rank,
            bytes: route.bytes,
            path: route.path,
            attempts: route.attempts,
        });
        routes.collect()
    }

    /// Fails what is under way, and tries nothing again.
    pub(super) fn stop<P: Planner>(&mut self, g: &mut Ground<'_, P>, id: JobId) {
        for (i, route) in self.routes.iter_mut().flatten().enumerate() {
            if matches!(route.state, RouteState::Pausing { .. }) {
                route.state = RouteState::Idle;
                g.cx.timers.clear(&Timer::Route(id, i));
            }
        }
        for transfer in self.under_way(None) {
            g.flows.fail(g.cx, transfer, Failure::Cancelled, true);
        }
    }

    fn route_mut(&mut self, i: usize) -> Option<&mut JobRoute> {
        self.routes.as_mut()?.get_mut(i)
    }

    /// What is ready of a rank.
    fn progress_of(&self, rank: Rank) -> Vec<(u32, u64)> {
        let layers = self.progress.iter().filter(|((r, _), _)| *r == rank);
        layers
            .map(|((_, layer), tokens)| (*layer, *tokens))
            .collect()
    }
}

/// Where a rank of a ticket is.
fn address(claims: &Claims, rank: Rank) -> Option<&RankAddress> {
    claims.ranks.get(rank.0 as usize)
}

impl<P: Planner> Job<P> {
    /// Moves the job on, as far as it can go now.
    pub(super) fn advance(&mut self, g: &mut Ground<'_, P>, id: JobId) -> Result<(), JobError> {
        if matches!(self.phase, Phase::Invited(_)) {
            self.check_agents(g)?;
            return self.invite_all(g, id);
        }
        if self.plan.is_none()
            && let Some(plan) = self.planned(g)?
            && let Phase::Own(own) = &mut self.phase
        {
            own.routes = Some(routes(&plan, &self.spec.ranks));
            self.plan = Some(plan);
        }
        self.check_agents(g)?;
        let Phase::Own(own) = &self.phase else {
            return Ok(());
        };
        let routes = own.routes.iter().flatten().enumerate();
        let idle = routes.filter(|(_, route)| route.state == RouteState::Idle);
        let idle: Vec<_> = idle
            .filter_map(|(i, route)| {
                let address = address(&self.claims, route.peer_rank)?;
                Some((i, g.peers.connection(&address.agent)?))
            })
            .collect();
        for (i, conn) in idle {
            self.try_route(g, id, i, conn);
        }
        match self.dials() {
            true => {
                for address in self.agents() {
                    g.peers.want(g.cx, address);
                }
            }
            false => self.expect(g, id),
        }
        Ok(())
    }

    /// Gives the agents that an invited push needs, and that are not connected, some time to come back.
    fn expect(&self, g: &mut Ground<'_, P>, id: JobId) {
        let timer = Timer::Away(id);
        if self.missing(g).is_none() {
            g.cx.timers.clear(&timer);
        } else if !g.cx.timers.is_set(&timer) {
            g.cx.after(g.cx.options.leases.peer_grace, timer);
        }
    }

    /// An agent that the job needs, and that is not connected.
    fn missing(&self, g: &Ground<'_, P>) -> Option<AgentId> {
        let mut needed = self.needed().into_iter().map(|address| &address.agent);
        let missing = needed.find(|agent| g.peers.connection(agent).is_none());
        missing.cloned()
    }

    /// Whether the agents that are connected are still those that the ticket means, and may be. Where it is ours to dial
    /// them, past lives of theirs are hung up on.
    fn check_agents(&self, g: &mut Ground<'_, P>) -> Result<(), JobError> {
        for address in self.needed() {
            if self.dials() {
                let life = self.claims.incarnation;
                g.peers.leave_past_life(g.cx, address, life, self.started);
            }
            if let Some(conn) = g.peers.connection(&address.agent) {
                g.peers.check_owner(conn, &address.agent, &self.claims)?;
            }
        }
        Ok(())
    }

    /// Asks for a route, for the first time or once more.
    fn try_route(&mut self, g: &mut Ground<'_, P>, id: JobId, i: usize, conn: ConnId) {
        let (transfer, nonce) = g.cx.draw();
        let (Some(agent), Some(plan)) = (g.peers.agent(conn).cloned(), self.plan.clone()) else {
            return;
        };
        let push = self.claims.direction == Direction::Push;
        let spec = &self.spec;
        let Phase::Own(own) = &mut self.phase else {
            return;
        };
        let Some(route) = own.route_mut(i) else {
            return;
        };
        route.state = RouteState::Trying(transfer);
        route.attempts += 1;
        let (rank, peer_rank, bytes) = (route.rank, route.peer_rank, route.bytes);
        let (source, destination, way) = match push {
            true => (rank, peer_rank, Way::Out),
            false => (peer_rank, rank, Way::In),
        };
        let paths = match spec.paths.and(g.paths.offered(g.peers, &agent, way)) {
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
            request: spec.request,
            content: spec.content,
            plan: route.digest,
            lanes: spec.lanes,
            paths,
            attempt: route.attempts,
        };
        let flow = Flow {
            transfer,
            nonce,
            conn,
            agent,
            rank,
            peer_rank,
            request: spec.request,
            bytes,
            lanes: spec.lanes,
            path: None,
            blocks: match spec.blocks {
                Held::Own(_) => BlocksOf::Job(id),
                Held::Of(lease) => lease,
            },
            all_readable: true,
            ready: Vec::new(),
        };
        let message = match push {
            true => Message::Push(ask),
            false => Message::Pull(ask),
        };
        let (side, way) = (Side::Job { job: id, route: i }, (way, spec.prefilled));
        let attempt = Transfer::new(flow, plan, side, way, spec.paths);
        g.flows.begin(g.cx, attempt);
        g.cx.send(conn, message);
    }

    /// Whether this plan is what it cannot go on without.
    pub(super) fn waits_for(&self, ask: &PlanAsk) -> bool {
        let is_own = matches!(self.phase, Phase::Own(_));
        is_own && self.stop.is_none() && self.plan.is_none() && self.plan_ask() == *ask
    }

    /// What it moves by.
    fn plan_ask(&self) -> PlanAsk {
        PlanAsk {
            peer: self.claims.owner,
            local_is_source: self.claims.direction == Direction::Push,
            request: self.spec.request,
        }
    }

    /// The plan, once the owner's deployment is known, and it is compiled.
    fn planned(&self, g: &mut Ground<'_, P>) -> Result<Option<Arc<Planned<P::Plan>>>, JobError> {
        let Some(ranks) = g.cx.planner.ranks(&self.claims.owner) else {
            return Ok(None);
        };
        let named = self.claims.ranks.len();
        if ranks as usize != named {
            let why = format!("the ticket names {named} ranks, its deployment has {ranks}");
            return Err(JobError::Plan { why: why.into() });
        }
        let Some(plan) = g.cx.plan(&self.plan_ask()) else {
            return Ok(None);
        };
        // The tables are our own, and the layout that they are bound against is the owner's.
        let places = self
            .spec
            .ranks
            .iter()
            .map(|rank| plan.places_of(*rank))
            .max();
        let checked = check_places_of_one(g.cx, places.unwrap_or(0));
        checked.map_err(|why| JobError::Plan { why })?;
        Ok(Some(plan))
    }
}

/// The routes of some local ranks, none of which has been tried.
fn routes<L>(plan: &Planned<L>, ranks: &BTreeSet<Rank>) -> Vec<JobRoute> {
    let routes = ranks.iter().flat_map(|rank| {
        let of_rank = plan.of_rank(*rank).iter();
        of_rank.map(|route| JobRoute {
            rank: *rank,
            peer_rank: route.peer_rank,
            bytes: route.bytes,
            digest: route.digest,
            state: RouteState::Idle,
            attempts: 0,
            failures: 0,
            path: Path::QUIC,
            committed: false,
        })
    });
    routes.collect()
}

/// What becomes of routes.
impl<P: Planner> Jobs<P> {
    fn own_mut(&mut self, id: JobId) -> Option<&mut Own> {
        match &mut self.jobs.get_mut(&id)?.phase {
            Phase::Own(own) => Some(own),
            Phase::Invited(_) => None,
        }
    }

    fn route_mut(&mut self, id: JobId, i: usize) -> Option<&mut JobRoute> {
        self.own_mut(id)?.route_mut(i)
    }

    /// Of a push: the first `tokens` tokens of a layer are ready to be read.
    pub(crate) fn ready(
        &mut self,
        g: &mut Ground<'_, P>,
        id: JobId,
        rank: Rank,
        layer: u32,
        tokens: u64,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.spec.prefilled
            || layer >= crate::lease::MAX_LAYERS
            || !job.spec.ranks.contains(&rank)
        {
            return;
        }
        let Phase::Own(own) = &mut job.phase else {
            return;
        };
        let known = own.progress.entry((rank, layer)).or_insert(0);
        if tokens <= *known {
            return;
        }
        *known = tokens;
        for transfer in own.under_way(Some(rank)) {
            g.flows.layer_ready(g.cx, transfer, layer, tokens);
        }
    }

    /// Of a push: everything is ready to be read.
    pub(crate) fn prefilled(&mut self, g: &mut Ground<'_, P>, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.spec.prefilled = true;
        }
        let under_way = self.own_mut(id).map(|own| own.under_way(None));
        for transfer in under_way.into_iter().flatten() {
            g.flows.all_ready(g.cx, transfer);
        }
    }

    /// A route was let in, and this is its path. Gives what is ready of its rank.
    pub(crate) fn route_accepted(
        &mut self,
        id: JobId,
        route: usize,
        path: Path,
    ) -> Vec<(u32, u64)> {
        self.admitted(id);
        let Some(own) = self.own_mut(id) else {
            return Vec::new();
        };
        let rank = own.route_mut(route).map(|route| {
            route.path = path;
            route.rank
        });
        rank.map_or(Vec::new(), |rank| own.progress_of(rank))
    }

    /// Of a push: a route says its commit.
    pub(crate) fn route_committed(&mut self, id: JobId, route: usize) {
        if let Some(route) = self.route_mut(id, route) {
            route.committed = true;
        }
    }

    /// A route has landed.
    pub(crate) fn route_landed(&mut self, g: &mut Ground<'_, P>, id: JobId, route: usize) {
        if let Some(route) = self.route_mut(id, route) {
            route.state = RouteState::Landed;
        }
        self.advance(g, id);
    }

    /// A route's attempt is over without success, and fenced.
    pub(crate) fn route_ended(&mut self, g: &mut Ground<'_, P>, id: JobId, i: usize, why: Why) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let stopping = job.stop.is_some();
        let Phase::Own(own) = &mut job.phase else {
            return;
        };
        let Some(route) = own.route_mut(i) else {
            return;
        };
        route.state = RouteState::Idle;
        if stopping {
            return self.finish_if_over(g.cx, id);
        }
        let busy = matches!(&why, Why::Refused(refusal) if refusal.is_transient());
        match route.ended(&g.cx.options, why) {
            Next::Landed => self.route_landed(g, id, i),
            Next::Stop(error) => self.stop(g, id, error),
            Next::Pause(pause) => {
                route.state = RouteState::Pausing { busy };
                g.cx.after(pause, Timer::Route(id, i));
                self.advance(g, id);
            }
        }
    }

    /// The pause of a route is over.
    pub(crate) fn route_due(&mut self, g: &mut Ground<'_, P>, id: JobId, i: usize) {
        if let Some(route) = self.route_mut(id, i)
            && matches!(route.state, RouteState::Pausing { .. })
        {
            route.state = RouteState::Idle;
        }
        self.advance(g, id);
    }

    /// An agent that an invited push needs has stayed away for too long.
    pub(crate) fn away(&mut self, g: &mut Ground<'_, P>, id: JobId) {
        let missing = self.jobs.get(&id).and_then(|job| job.missing(g));
        if let Some(agent) = missing {
            let grace = g.cx.options.leases.peer_grace;
            let why = format!("it was connected, and has not come back within {grace:?}").into();
            self.stop(g, id, JobError::Unreachable { agent, why });
        }
    }
}
