//! The routes of a job that moves bytes itself.

use std::sync::Arc;

use transload_plan::ids::{AgentId, Direction, Rank, TransferId};

use super::route::{JobRoute, RouteState};
use super::{Job, Jobs};
use crate::action::{BlocksOf, Flow, Held};
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::event::{Side, Why};
use crate::flows::transfer::Transfer;
use crate::ids::JobId;
use crate::lower::Lower;
use crate::outcome::JobError;
use crate::owner::check_places_of_one;
use crate::path::negotiation::Way;
use crate::path::{Path, PathSet};
use crate::plans::{PlanAsk, Planned};
use crate::refusal::Failure;
use crate::ticket::RankAddress;
use crate::waiting::Awaited;

impl<D: KnownDeployments> Job<D> {
    pub(super) fn address(&self, route: &JobRoute) -> Option<&RankAddress> {
        self.claims.ranks.get(route.report.peer_rank.0 as usize)
    }

    /// Returns the agent of the first route that has not landed, its attempt, and what it waits for if it has none.
    pub(super) fn first_open(&self, cx: &Context<D>) -> Option<(&AgentId, Option<TransferId>, Awaited)> {
        if self.plan.is_none() {
            let idle = match cx.deployments.ranks(&self.claims.owner) {
                Some(_) => Awaited::Plan,
                None => Awaited::Connection,
            };
            return Some((&self.claims.ranks.first()?.agent, None, idle));
        }
        let mut open = self.routes.iter().filter(|r| r.state != RouteState::Landed);
        let route = open.next()?;
        let idle = match route.state {
            RouteState::Pausing { busy: true } => Awaited::Turn,
            _ => Awaited::Attempt,
        };
        Some((&self.address(route)?.agent, route.trying(), idle))
    }

    pub(super) fn under_way(&self, rank: Option<Rank>) -> Vec<TransferId> {
        let routes = self.routes.iter();
        let routes = routes.filter(|route| rank.is_none_or(|rank| rank == route.report.rank));
        routes.filter_map(JobRoute::trying).collect()
    }

    pub(super) fn has_landed(&self) -> bool {
        let mut routes = self.routes.iter();
        self.plan.is_some() && routes.all(|route| route.state == RouteState::Landed)
    }

    /// Fails all transfers in progress, and makes no further attempts.
    pub(super) fn stop_routes(&mut self, lower: &mut Lower<'_, D>, id: JobId) {
        for (i, route) in self.routes.iter_mut().enumerate() {
            if matches!(route.state, RouteState::Pausing { .. }) {
                route.state = RouteState::Idle;
                lower.cx.timers.clear(&Timer::Route(id, i));
            }
        }
        let failure = self.stop.as_ref().map(JobError::as_failure);
        let failure = failure.unwrap_or(Failure::Cancelled);
        for transfer in self.under_way(None) {
            lower.flows.fail(lower.cx, transfer, failure.clone(), true);
        }
    }
}

impl<D: KnownDeployments> Job<D> {
    /// Takes every step that is possible now.
    pub(super) fn advance(&mut self, lower: &mut Lower<'_, D>, id: JobId) -> Result<(), JobError> {
        if self.invited.is_some() {
            self.check_agents(lower)?;
            return self.invite_all(lower, id);
        }
        if self.plan.is_none()
            && let Some(plan) = self.planned(lower)?
        {
            let ranks = self.spec.ranks.iter();
            let routes = ranks.flat_map(|rank| {
                let routes = plan.of_rank(*rank).iter();
                routes.map(|route| JobRoute::new(*rank, route))
            });
            self.routes = routes.collect();
            self.plan = Some(plan);
        }
        self.check_agents(lower)?;
        for i in 0..self.routes.len() {
            self.try_route(lower, id, i);
        }
        match self.dials() {
            true => {
                for address in self.agents() {
                    lower.peers.want(lower.cx, address);
                }
            }
            false => self.expect(lower, id),
        }
        Ok(())
    }

    /// Starts or clears the time limit for agents that an invited push needs and that are not connected.
    fn expect(&self, lower: &mut Lower<'_, D>, id: JobId) {
        let timer = Timer::Away(id);
        if self.missing(lower).is_none() {
            lower.cx.timers.clear(&timer);
        } else if !lower.cx.timers.is_set(&timer) {
            lower.cx.after(lower.cx.options.leases.peer_grace, timer);
        }
    }

    fn missing(&self, lower: &Lower<'_, D>) -> Option<AgentId> {
        let mut needed = self.needed().into_iter().map(|address| &address.agent);
        let missing = needed.find(|agent| lower.peers.connection(agent).is_none());
        missing.cloned()
    }

    /// Checks that the connected agents are still those that the ticket means, and may serve. If the job dials, it
    /// first closes connections to past lives of them.
    fn check_agents(&self, lower: &mut Lower<'_, D>) -> Result<(), JobError> {
        for address in self.needed() {
            if self.dials() {
                let life = self.claims.incarnation;
                lower.peers.leave_past_life(lower.cx, address, life, self.started);
            }
            if let Some(conn) = lower.peers.connection(&address.agent) {
                lower.peers.check_owner(conn, &address.agent, &self.claims)?;
                let codec = self.spec.request.codec;
                lower.peers.check_codec(conn, &address.agent, codec)?;
            }
        }
        Ok(())
    }

    /// Begins an attempt at an idle route, if its agent is connected.
    fn try_route(&mut self, lower: &mut Lower<'_, D>, id: JobId, i: usize) -> Option<()> {
        let route = self.routes.get(i).filter(|r| r.state == RouteState::Idle)?;
        let agent = &self.address(route)?.agent;
        let (conn, agent) = (lower.peers.connection(agent)?, agent.clone());
        let plan = self.plan.clone()?;
        let (transfer, nonce) = lower.cx.draw();
        let direction = self.claims.direction;
        let way = match direction {
            Direction::Push => Way::Out,
            Direction::Pull => Way::In,
        };
        let spec = &self.spec;
        let paths = match spec.travels_by().and(lower.paths.offered(lower.peers, &agent, way)) {
            // With no path in common the peer refuses, and names the paths that were wanted.
            none if none == PathSet::default() => spec.travels_by(),
            some => some,
        };
        let route = self.routes.get_mut(i)?;
        route.state = RouteState::Trying(transfer);
        route.report.attempts += 1;
        let flow = Flow {
            transfer,
            nonce,
            conn,
            agent,
            rank: route.report.rank,
            peer_rank: route.report.peer_rank,
            request: spec.request,
            bytes: route.report.bytes,
            lanes: spec.lanes,
            path: None,
            blocks: match self.blocks {
                Held::Own(_) => BlocksOf::Job(id),
                Held::Of(lease) => lease,
            },
            all_readable: true,
            ready: Vec::new(),
        };
        let message = route.ask(spec, &flow, paths, direction);
        let (side, way) = (Side::Job { job: id, route: i }, (way, spec.prefilled));
        let attempt = Transfer::new(flow, plan, side, way, spec.travels_by());
        lower.flows.begin(lower.cx, attempt);
        lower.cx.send(conn, message);
        Some(())
    }

    pub(super) fn waits_for(&self, ask: &PlanAsk) -> bool {
        let waits = self.invited.is_none() && self.stop.is_none() && self.plan.is_none();
        waits && self.plan_ask() == *ask
    }

    fn plan_ask(&self) -> PlanAsk {
        PlanAsk {
            peer: self.claims.owner,
            local_is_source: self.claims.direction == Direction::Push,
            request: self.spec.request,
        }
    }

    /// Returns the plan, once the owner's deployment is known and the plan is compiled.
    fn planned(&self, lower: &mut Lower<'_, D>) -> Result<Option<Arc<Planned<D::Plan>>>, JobError> {
        let Some(ranks) = lower.cx.deployments.ranks(&self.claims.owner) else {
            return Ok(None);
        };
        let named = self.claims.ranks.len();
        if ranks as usize != named {
            let why = format!("the ticket names {named} ranks, its deployment has {ranks}");
            return Err(JobError::Plan { why: why.into() });
        }
        let Some(plan) = lower.cx.plan(&self.plan_ask()) else {
            return Ok(None);
        };
        // The block tables are ours, but the owner's layout decides how many places binding takes.
        let places = self.spec.ranks.iter().map(|rank| plan.places_of(*rank)).max();
        let checked = check_places_of_one(lower.cx, places.unwrap_or(0));
        checked.map_err(|why| JobError::Plan { why })?;
        Ok(Some(plan))
    }
}

impl<D: KnownDeployments> Jobs<D> {
    fn route_mut(&mut self, id: JobId, i: usize) -> Option<&mut JobRoute> {
        self.jobs.get_mut(&id)?.routes.get_mut(i)
    }

    /// Records that the first `tokens` tokens of a layer are ready. Used by pushes only.
    pub(crate) fn ready(&mut self, lower: &mut Lower<'_, D>, id: JobId, rank: Rank, layer: u32, tokens: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.spec.prefilled || layer >= crate::lease::MAX_LAYERS || !job.spec.ranks.contains(&rank) {
            return;
        }
        let known = job.progress.entry((rank, layer)).or_insert(0);
        if tokens <= *known {
            return;
        }
        *known = tokens;
        for transfer in job.under_way(Some(rank)) {
            lower.flows.layer_ready(lower.cx, transfer, layer, tokens);
        }
    }

    /// Records that everything is ready. Used by pushes only.
    pub(crate) fn prefilled(&mut self, lower: &mut Lower<'_, D>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.spec.prefilled = true;
        for transfer in job.under_way(None) {
            lower.flows.all_ready(lower.cx, transfer);
        }
    }

    /// Records that a route was accepted, with its path. Returns the layers and tokens of its rank that are ready.
    pub(crate) fn route_accepted(&mut self, id: JobId, route: usize, path: Path) -> Vec<(u32, u64)> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Vec::new();
        };
        job.admitted = true;
        let Some(route) = job.routes.get_mut(route) else {
            return Vec::new();
        };
        route.report.path = path;
        let of_rank = (route.report.rank, 0)..=(route.report.rank, u32::MAX);
        let layers = job.progress.range(of_rank);
        layers.map(|(&(_, layer), &tokens)| (layer, tokens)).collect()
    }

    /// Records that a route sends its commit. Used by pushes only.
    pub(crate) fn route_committed(&mut self, id: JobId, route: usize) {
        if let Some(route) = self.route_mut(id, route) {
            route.committed = true;
        }
    }

    pub(crate) fn route_landed(&mut self, lower: &mut Lower<'_, D>, id: JobId, route: usize) {
        if let Some(route) = self.route_mut(id, route) {
            route.state = RouteState::Landed;
        }
        self.advance(lower, id);
    }

    pub(crate) fn route_ended(&mut self, lower: &mut Lower<'_, D>, id: JobId, i: usize, why: Why) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let stopping = job.stop.is_some();
        let Some(route) = job.routes.get_mut(i) else {
            return;
        };
        route.state = RouteState::Idle;
        if stopping {
            return self.finish_if_over(lower.cx, id);
        }
        match route.ended(&lower.cx.options, why) {
            Err(error) => self.stop(lower, id, error),
            Ok(pause) => {
                if let Some(pause) = pause {
                    lower.cx.after(pause, Timer::Route(id, i));
                }
                self.advance(lower, id);
            }
        }
    }

    pub(crate) fn route_due(&mut self, lower: &mut Lower<'_, D>, id: JobId, i: usize) {
        if let Some(route) = self.route_mut(id, i)
            && matches!(route.state, RouteState::Pausing { .. })
        {
            route.state = RouteState::Idle;
        }
        self.advance(lower, id);
    }

    pub(crate) fn away(&mut self, lower: &mut Lower<'_, D>, id: JobId) {
        let missing = self.jobs.get(&id).and_then(|job| job.missing(lower));
        if let Some(agent) = missing {
            let grace = lower.cx.options.leases.peer_grace;
            let why = format!("it was connected, and has not come back within {grace:?}").into();
            self.stop(lower, id, JobError::Unreachable { agent, why });
        }
    }
}
