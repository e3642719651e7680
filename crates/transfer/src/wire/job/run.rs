//! How jobs run.

use crate::wire::PathSet;
use std::collections::BTreeMap;

use super::{Job, JobError, JobRefused, JobReport, JobRoute, JobSpec, RouteReport, RouteState};
use crate::ids::{AgentId, Rank};
use crate::moment::Moment;
use crate::path::Path;
use crate::ticket::Claims;
use crate::wire::destination::Destination;
use crate::wire::held::Held;
use crate::wire::message::{Ask, Message, NoticeKind};
use crate::wire::peers::Dialler;
use crate::wire::planner::{Planner, RouteAsk};
use crate::wire::refusal::{Failure, Refusal};
use crate::wire::source::Source;
use crate::wire::transfer::{Role, Side, Transfer, Why};
use crate::wire::{Action, BlocksOf, ConnId, Flow, JobId, Machine, Timer};

/// As many attempts as an owner may say that there were: more are not to be reached in the life of a lease.
const MOST_ATTEMPTS: u32 = 1 << 20;

/// What the holder of a ticket does.
impl<B, P: Planner> Machine<B, P> {
    /// Begins to pull or to push.
    pub fn start(&mut self, now: Moment, spec: JobSpec<B>) -> Result<JobId, JobRefused<B>> {
        let checked = self.check_job(&spec);
        let checked = checked.and_then(|claims| Ok((claims, self.check_openings(now, &spec)?)));
        let (claims, openings) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                self.settle(now);
                let (error, blocks) = (Box::new(error), spec.blocks);
                return Err(JobRefused { error, blocks });
            }
        };
        let id = JobId(self.next_number());
        match openings {
            Some(openings) => self.begin_invited(now, id, spec, claims, openings),
            None => {
                self.timers.set(Timer::Job(id), now + spec.timeout);
                self.begin_job(now, id, spec.with_blocks(Held::Own), claims);
            }
        }
        self.settle(now);
        Ok(id)
    }

    /// Begins a job that something else ends in time.
    pub(in crate::wire) fn begin_job(
        &mut self,
        now: Moment,
        id: JobId,
        spec: JobSpec<Held<B>>,
        claims: Claims,
    ) {
        let job = Job {
            spec,
            claims,
            started: now,
            moved: None,
            routes: None,
            progress: BTreeMap::new(),
            admitted: false,
            stop: None,
        };
        if job.dialler() == Dialler::Us {
            for address in job.agents() {
                self.hurry(address.agent.clone());
            }
        }
        self.jobs.insert(id, job);
        self.advance(now, id);
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
        if self.invited.contains_key(&id) {
            return self.advance_invited(now, id);
        }
        if let Err(error) = self.plan(id) {
            self.stop(now, id, error);
            return;
        }
        self.leave_past_lives(now, id);
        if let Err(error) = self.check_peers(id) {
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
        let dialler = job.dialler();
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
        match dialler {
            Dialler::Us => addresses.iter().for_each(|address| self.want(address)),
            Dialler::Peer => self.expect(now, id),
        }
        self.finish_if_landed(now, id);
    }

    /// Gives the agents that an invited push needs, and that are not connected, some time to come back.
    fn expect(&mut self, now: Moment, id: JobId) {
        let timer = Timer::Away(id);
        if self.missing(id).is_none() {
            self.timers.clear(&timer);
        } else if !self.timers.is_set(&timer) {
            let grace = self.options.leases.peer_grace;
            self.timers.set(timer, now + grace);
        }
    }

    /// An agent has stayed away for too long.
    pub(in crate::wire) fn away(&mut self, now: Moment, id: JobId) {
        if let Some(agent) = self.missing(id) {
            let grace = self.options.leases.peer_grace;
            let why = format!("it was connected, and has not come back within {grace:?}").into();
            self.stop(now, id, JobError::Unreachable { agent, why });
        }
    }

    /// An agent that the job needs, and that is not connected.
    fn missing(&self, id: JobId) -> Option<AgentId> {
        let job = self.jobs.get(&id)?;
        let agents = job.agents().into_iter().map(|address| &address.agent);
        let mut needed = agents.filter(|agent| job.needs(agent));
        needed
            .find(|agent| self.connection(agent).is_none())
            .cloned()
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
        let (mut found, mut places) = (Vec::new(), 0);
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
            let of_rank = routes.iter().map(|route| route.places);
            places = of_rank.fold(0, u64::saturating_add).max(places);
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
        // The tables are our own, and the layout that they are bound against is the owner's.
        self.check_places_of_one(places)
            .map_err(|why| JobError::Plan { why })?;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.routes = Some(found);
        }
        Ok(())
    }

    fn leave_past_lives(&mut self, now: Moment, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|_| !fault!(self, AnyIncarnation)) else {
            return;
        };
        let (started, ticket) = (job.started, job.claims.incarnation);
        if job.dialler() == Dialler::Peer {
            return;
        }
        let needed = job.agents().into_iter();
        let needed = needed.filter(|address| job.needs(&address.agent));
        for address in needed.cloned().collect::<Vec<_>>() {
            self.leave_past_life(now, &address, ticket, started);
        }
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
            blocks: match spec.blocks {
                Held::Own(_) => BlocksOf::Job(id),
                Held::Of(lease) => lease,
            },
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
            places: 0,
            waiting: None,
            moved: 0,
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

    /// Bytes of a job are about to move.
    pub(crate) fn job_moves(&mut self, now: Moment, job: JobId) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.moved.get_or_insert(now);
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
        let busy = matches!(&why, Why::Refused(refusal) if refusal.is_transient());
        let pause = match why {
            // Our commit came through, and only the answer was lost.
            Why::Refused(Refusal::Consumed) if route.committed => {
                self.route_landed(now, id, i);
                return;
            }
            Why::Refused(_) if busy => self.options.pause(route.attempts),
            // An earlier job of ours, which has left the leases alone, has tried as often.
            Why::Refused(Refusal::Superseded { latest })
                if (route.attempts..MOST_ATTEMPTS).contains(&latest)
                    && route.failures + 1 < self.options.attempts =>
            {
                route.failures += 1;
                route.attempts = latest;
                self.options.pause(route.failures)
            }
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
        route.state = RouteState::Pausing { busy };
        self.timers.set(Timer::Route(id, i), now + pause);
        self.advance(now, id);
    }

    /// The pause of a route is over.
    pub(crate) fn route_due(&mut self, now: Moment, id: JobId, i: usize) {
        let routes = self.jobs.get_mut(&id).and_then(|job| job.routes.as_mut());
        if let Some(route) = routes.and_then(|routes| routes.get_mut(i))
            && matches!(route.state, RouteState::Pausing { .. })
        {
            route.state = RouteState::Idle;
        }
        self.advance(now, id);
    }

    /// Ends a job without success: as soon as nothing of it is under way any more.
    pub(crate) fn stop(&mut self, now: Moment, id: JobId, error: JobError) {
        if self.invited.contains_key(&id) {
            return self.stop_invited(now, id, error);
        }
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.stop.is_some() {
            return;
        }
        job.stop = Some(error);
        let under_way = job.under_way(None);
        for (i, route) in (0..).zip(job.routes.iter_mut().flatten()) {
            if matches!(route.state, RouteState::Pausing { .. }) {
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
        self.timers.clear(&Timer::Away(id));
        let Some(error) = job.stop.take() else {
            return;
        };
        let cancels = Job::<B>::cancels(&error, job.spec.keep_leases, job.admitted);
        let dialler = job.dialler();
        let (ticket, content) = (job.spec.ticket, Some(job.spec.content));
        self.job_over(id, job.spec.blocks, Err(error));
        if cancels {
            self.notify(
                now,
                ticket,
                job.claims,
                NoticeKind::Cancel { content },
                dialler,
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
        self.timers.clear(&Timer::Away(id));
        let routes = job.routes.iter().flatten().map(|route| RouteReport {
            rank: route.rank,
            peer_rank: route.peer_rank,
            bytes: route.bytes,
            path: route.path,
            attempts: route.attempts,
        });
        let report = JobReport::new(now, job.started, job.moved, routes.collect());
        let dialler = job.dialler();
        self.job_over(id, job.spec.blocks, Ok(report));
        let done = NoticeKind::Done {
            ranks: job.spec.ranks.into_iter().collect(),
            content: job.spec.content,
        };
        self.notify(now, job.spec.ticket, job.claims, done, dialler, false);
    }

    /// `agent` could not be reached so often that waiting for it is over.
    pub(crate) fn stop_all_that_need(&mut self, now: Moment, agent: &AgentId, error: &JobError) {
        let needy = self.jobs.iter().filter(|(_, job)| job.needs(agent));
        let invited = self.invited.iter().filter(|(_, job)| job.wants(agent));
        let needy = needy.map(|(id, _)| *id).chain(invited.map(|(id, _)| *id));
        let needy: Vec<_> = needy.collect();
        needy
            .into_iter()
            .for_each(|id| self.stop(now, id, error.clone()));
    }

    /// Nothing touches the blocks of a job any more: they go back to where they came from.
    fn job_over(&mut self, id: JobId, blocks: Held<B>, result: Result<JobReport, JobError>) {
        match blocks {
            Held::Own(blocks) => self.actions.push_back(Action::JobDone {
                job: id,
                result,
                blocks,
            }),
            Held::Of(BlocksOf::Lease(key)) => self.push_over(key, result),
            Held::Of(BlocksOf::Job(_)) => {}
        }
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
