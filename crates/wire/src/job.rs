//! Jobs: pulls and pushes by the holder of a ticket, each with all its routes.
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
//! A job succeeds only when every route of every local rank has landed, and it returns its blocks only when no route
//! has anything in progress any more.
//!
//! A pull can have the owner push instead: then it opens its blocks, and waits (`invited.rs`).

mod check;
mod invited;
mod invitees;
mod route;
mod routes;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use transload_plan::ids::{AgentId, Rank};

use crate::action::{Action, BlocksOf, Held};
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::event::{Event, Notify, Side};
use crate::flows::Flows;
use crate::flows::transfer::Transfer;
use crate::ids::JobId;
use crate::lease::LeaseKey;
use crate::lower::Lower;
use crate::message::NoticeKind;
use crate::moment::Moment;
use crate::outcome::{JobError, JobReport};
use crate::peers::Peers;
use crate::plans::{PlanAsk, Planned};
use crate::refusal::Text;
use crate::ticket::{Claims, RankAddress};
use crate::waiting::{Awaited, Waiting, shown};

pub(crate) use check::check_job;
pub(crate) use invited::write_leases;
pub use spec::{JobRefused, JobSpec};

use invitees::Invitees;
use route::{JobRoute, RouteState};

/// A job in progress. Memory: about 800 bytes, the ticket's claims, and 100 bytes for each route.
#[derive(Debug)]
pub(crate) struct Job<D: KnownDeployments> {
    spec: JobSpec,
    claims: Claims,
    blocks: Held<D::Blocks>,
    /// The plan of its routes, once the owner's deployment is known and the plan is compiled.
    plan: Option<Arc<Planned<D::Plan>>>,
    routes: Vec<JobRoute>,
    /// Used by pushes only: the number of ready tokens, by local rank and layer.
    progress: BTreeMap<(Rank, u32), u64>,
    /// The agents that it has invited to push. Such a job has no routes of its own.
    invited: Option<Invitees>,
    started: Moment,
    moved: Option<Moment>,
    /// Whether an owner has admitted one of its transfers, so that there is something to cancel.
    admitted: bool,
    stop: Option<JobError>,
    /// Whether memory did not finish its work on the blocks in time.
    stalled: bool,
}

impl<D: KnownDeployments> Job<D> {
    /// Makes a job that begins now. If it `opens` write leases, its owner pushes into them.
    pub(crate) fn new(
        now: Moment,
        spec: JobSpec,
        claims: Claims,
        blocks: Held<D::Blocks>,
        opens: BTreeSet<LeaseKey>,
    ) -> Self {
        Self {
            invited: (!opens.is_empty()).then(|| Invitees::new(opens, &claims)),
            spec,
            claims,
            blocks,
            plan: None,
            routes: Vec::new(),
            progress: BTreeMap::new(),
            started: now,
            moved: None,
            admitted: false,
            stop: None,
            stalled: false,
        }
    }

    /// Returns whether this agent dials the agents of the ticket, at the addresses in it. It does not for an invited
    /// push: the inviting engine chose that ticket, which therefore proves nothing about other agents' addresses or
    /// lives. Those agents are expected to come back by themselves.
    fn dials(&self) -> bool {
        matches!(self.blocks, Held::Own(_))
    }

    fn agents(&self) -> BTreeSet<&RankAddress> {
        self.agents_of(|_| true)
    }

    fn needed(&self) -> BTreeSet<&RankAddress> {
        self.agents_of(|route| route.state != RouteState::Landed)
    }

    fn agents_of(&self, of: impl Fn(&&JobRoute) -> bool) -> BTreeSet<&RankAddress> {
        let ranks = self.claims.ranks.iter();
        match (&self.invited, &self.plan) {
            (Some(_), _) => ranks.collect(),
            (None, None) => ranks.take(1).collect(),
            (None, Some(_)) => {
                let routes = self.routes.iter().filter(of);
                routes.filter_map(|route| self.address(route)).collect()
            }
        }
    }

    /// Returns whether the job wants to stay connected to `agent`. That includes agents whose routes have all landed,
    /// because an owner ends the leases of a holder that it considers lost.
    fn wants(&self, agent: &AgentId) -> bool {
        self.stop.is_none() && self.agents().iter().any(|address| address.agent == *agent)
    }

    fn is_over(&self) -> bool {
        match &self.invited {
            Some(invited) => invited.open.is_empty(),
            None if self.stop.is_some() => self.under_way(None).is_empty(),
            None => self.has_landed(),
        }
    }

    fn cancels(&self, error: &JobError) -> bool {
        let keep = self.spec.keep_leases && *error != JobError::Cancelled;
        !keep && (self.admitted || !error.is_not_ours())
    }

    /// Makes the notice for the ticket's agents that the job is cancelled.
    fn cancel(&self) -> Event {
        let content = Some(self.spec.content);
        self.notify(NoticeKind::Cancel { content })
    }

    fn notify(&self, says: NoticeKind) -> Event {
        Event::Notify(Box::new(Notify {
            ticket: self.spec.ticket.clone(),
            claims: self.claims.clone(),
            says,
            dials: self.dials(),
            reported: false,
        }))
    }
}

#[derive(Debug)]
pub(crate) struct Jobs<D: KnownDeployments> {
    jobs: BTreeMap<JobId, Job<D>>,
}

impl<D: KnownDeployments> Jobs<D> {
    pub(crate) fn new() -> Self {
        let jobs = BTreeMap::new();
        Self { jobs }
    }

    pub(crate) fn stalled(&self) -> usize {
        self.jobs.values().filter(|job| job.stalled).count()
    }

    pub(crate) fn ids(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    pub(crate) fn blocks(&self, id: JobId) -> Option<&Held<D::Blocks>> {
        self.jobs.get(&id).map(|job| &job.blocks)
    }

    pub(crate) fn want(&self, agent: &AgentId) -> bool {
        self.jobs.values().any(|job| job.wants(agent))
    }

    pub(crate) fn dials(&self, agent: &AgentId) -> Option<&RankAddress> {
        let dialling = self.jobs.values();
        let dialling = dialling.filter(|job| job.dials() && job.wants(agent));
        let mut addresses = dialling.flat_map(|job| &job.claims.ranks);
        addresses.find(|address| address.agent == *agent)
    }

    fn like(&self, like: impl Fn(&Job<D>) -> bool) -> Vec<JobId> {
        let jobs = self.jobs.iter().filter(|(_, job)| like(job));
        jobs.map(|(id, _)| *id).collect()
    }

    pub(crate) fn awaits(&self, cx: &Context<D>, peers: &Peers, flows: &Flows<D>, id: JobId) -> Option<Waiting> {
        let job = self.jobs.get(&id)?;
        let (agent, transfer, idle) = match &job.invited {
            None => job.first_open(cx)?,
            Some(invited) => {
                let (agent, idle) = invited.first_unheard(&job.claims)?;
                let opened = |t: &&Transfer<D>| matches!(t.side, Side::Lease(key) if invited.open.contains(&key));
                let pushed = flows.all().find(opened);
                (agent, pushed.map(|t| t.flow.transfer), idle)
            }
        };
        let on = match transfer.and_then(|transfer| flows.get(transfer)) {
            Some(transfer) => transfer.awaits(),
            None if idle == Awaited::Plan => idle,
            None if peers.connection(agent).is_none() => Awaited::Connection,
            None => idle,
        };
        // The ticket's address may not have been dialled: the agent may have connected by itself, or still be dialled
        // at an earlier address.
        let asked = peers.address(agent).filter(|_| on != Awaited::Plan);
        Some(Waiting { on, agent: agent.clone(), address: asked.map(shown) })
    }
}

/// Beginning and continuing jobs.
impl<D: KnownDeployments> Jobs<D> {
    /// Adds a job. It makes no progress until it is [advanced](Self::advance).
    pub(crate) fn begin(&mut self, lower: &mut Lower<'_, D>, id: JobId, job: Job<D>) {
        if job.dials() {
            for address in job.agents() {
                lower.peers.hurry(lower.cx, address);
            }
        }
        self.jobs.insert(id, job);
    }

    pub(crate) fn advance(&mut self, lower: &mut Lower<'_, D>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.stop.is_none()
            && let Err(error) = job.advance(lower, id)
        {
            return self.stop(lower, id, error);
        }
        self.finish_if_over(lower.cx, id);
    }

    /// Resumes or ends the jobs that wait for a plan, which is compiled or cannot be.
    pub(crate) fn compiled(&mut self, lower: &mut Lower<'_, D>, ask: &PlanAsk, outcome: Result<(), &Text>) {
        let waits = |job: &Job<D>| job.waits_for(ask);
        for id in self.like(waits) {
            match outcome {
                Ok(()) => self.advance(lower, id),
                // The last connection to the owner was lost meanwhile. The next one has the plan compiled again.
                Err(_) if lower.cx.deployments.ranks(&ask.peer).is_none() => {}
                Err(why) => self.stop(lower, id, JobError::Plan { why: why.clone() }),
            }
        }
    }

    pub(crate) fn agent_up(&mut self, lower: &mut Lower<'_, D>, agent: &AgentId) {
        for id in self.like(|job| job.wants(agent)) {
            self.advance(lower, id);
        }
    }

    /// Stops the jobs that need `agent`, which cannot be reached or does not talk to us.
    pub(crate) fn stop_all_that_need(&mut self, lower: &mut Lower<'_, D>, agent: &AgentId, error: &JobError) {
        let needs = |job: &Job<D>| job.needed().iter().any(|address| address.agent == *agent);
        for id in self.like(needs) {
            self.stop(lower, id, error.clone());
        }
    }

    /// Records that an owner has admitted a job, even if it must still wait.
    pub(crate) fn admitted(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.admitted = true;
        }
    }

    pub(crate) fn moves(&mut self, cx: &Context<D>, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.moved.get_or_insert(cx.now);
        }
    }

    pub(crate) fn timed_out(&mut self, lower: &mut Lower<'_, D>, id: JobId) {
        if let Some(job) = self.jobs.get(&id) {
            let timeout = job.spec.timeout;
            let waiting = self.awaits(lower.cx, lower.peers, lower.flows, id);
            self.stop(lower, id, JobError::TimedOut { timeout, waiting });
        }
    }

    /// Ends a job without success, as soon as nothing of it is in progress any more. The first reason stays.
    pub(crate) fn stop(&mut self, lower: &mut Lower<'_, D>, id: JobId, error: JobError) {
        let job = self.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| job.stop.is_none()) else {
            return;
        };
        job.stop = Some(error);
        match &job.invited {
            None => job.stop_routes(lower, id),
            Some(invited) => {
                let opened = invited.open.iter().copied();
                lower.cx.emit(Event::GiveUp(opened.collect()));
            }
        }
        self.finish_if_over(lower.cx, id);
    }

    /// Stops the jobs of a rank whose device is lost, with the blocks' contents. Invited pushes end with their leases.
    pub(crate) fn lose(&mut self, lower: &mut Lower<'_, D>, rank: Rank) {
        let own = |job: &Job<D>| matches!(job.blocks, Held::Own(_));
        for id in self.like(|job| own(job) && job.spec.ranks.contains(&rank)) {
            self.stop(lower, id, JobError::DeviceLost { rank });
        }
    }

    /// Fails a job because memory of a rank does not finish its work. The job ends when the memory is done after all.
    pub(crate) fn stall(&mut self, lower: &mut Lower<'_, D>, id: JobId, rank: Rank) {
        self.stop(lower, id, JobError::DeviceStalled { rank });
        let job = self.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| !job.stalled) else {
            return;
        };
        job.stalled = true;
        // The agents of the ticket are told now: the end may never come.
        if job.stop.as_ref().is_some_and(|error| job.cancels(error)) {
            lower.cx.emit(job.cancel());
        }
        match job.blocks {
            Held::Own(_) => lower.cx.act(Action::JobStalled(id, rank)),
            Held::Of(BlocksOf::Lease(key)) => {
                lower.cx.emit(Event::Stalled(Side::Lease(key), rank, None));
            }
            Held::Of(BlocksOf::Job(_)) => {}
        }
    }

    fn finish_if_over(&mut self, cx: &mut Context<D>, id: JobId) {
        if !self.jobs.get(&id).is_some_and(Job::is_over) {
            return;
        }
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        cx.timers.clear(&Timer::Job(id));
        cx.timers.clear(&Timer::Away(id));
        cx.jobs.remove(job.claims.set, &job.spec.ranks);
        let error = job.stop.take();
        let notice = match &error {
            // A stalled job told the agents when its memory stalled.
            Some(error) => (!job.stalled && job.cancels(error)).then(|| job.cancel()),
            // If the owner has pushed, its own write leases have told it so.
            None => job.invited.is_none().then(|| {
                let ranks = job.spec.ranks.iter().copied().collect();
                let content = job.spec.content;
                job.notify(NoticeKind::Done { ranks, content })
            }),
        };
        let routes: Vec<_> = match job.invited {
            None => job.routes.into_iter().map(|route| route.report).collect(),
            Some(invited) => invited.report(cx, id),
        };
        let result = match error {
            Some(error) => Err(error),
            None => Ok(JobReport {
                bytes: routes.iter().map(|route| route.bytes).sum(),
                took: cx.now.since(job.started),
                queued: job.moved.unwrap_or(cx.now).since(job.started),
                routes,
                unpaired: cx.deployments.unpaired(&job.claims.owner),
            }),
        };
        match job.blocks {
            Held::Own(blocks) => cx.act(Action::JobDone { job: id, result, blocks }),
            Held::Of(BlocksOf::Lease(key)) => {
                let landed = result.is_ok();
                cx.act(Action::Pushed(key, result));
                cx.emit(Event::PushOver { key, landed });
            }
            Held::Of(BlocksOf::Job(_)) => {}
        }
        if let Some(notice) = notice {
            cx.emit(notice);
        }
    }
}
