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
//! A pull can have its owner push instead: then it opens its blocks, and waits (`invited.rs`).

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
use crate::awaited::{Awaited, Waiting, shown};
use crate::context::{Context, Timer};
use crate::flows::Flows;
use crate::flows::transfer::Transfer;
use crate::ground::Ground;
use crate::ids::JobId;
use crate::lease::LeaseKey;
use crate::message::NoticeKind;
use crate::moment::Moment;
use crate::news::{News, Notify, Side};
use crate::outcome::{JobError, JobReport};
use crate::peers::Peers;
use crate::planner::{PlanAsk, Planned, Planner};
use crate::refusal::Text;
use crate::ticket::{Claims, RankAddress};

pub(crate) use check::check_job;
pub(crate) use invited::write_leases;
pub use spec::{JobRefused, JobSpec};

use invitees::Invitees;
use route::{JobRoute, RouteState};

/// A job under way. Memory: about 800 bytes, the ticket's claims, and 100 bytes for each route.
#[derive(Debug)]
pub(crate) struct Job<P: Planner> {
    spec: JobSpec,
    claims: Claims,
    blocks: Held<P::Blocks>,
    /// What its routes move by, once the owner's deployment is known and that is compiled.
    plan: Option<Arc<Planned<P::Plan>>>,
    /// The routes of that plan.
    routes: Vec<JobRoute>,
    /// Layers and tokens that are ready, by local rank (pushes only).
    progress: BTreeMap<(Rank, u32), u64>,
    /// Whom it has invited to push, where it has no routes of its own.
    invited: Option<Invitees>,
    started: Moment,
    /// When its first byte moved.
    moved: Option<Moment>,
    /// Whether some owner has let us in: then there is something to cancel.
    admitted: bool,
    stop: Option<JobError>,
    /// Whether memory has not been done with its blocks in time.
    stalled: bool,
}

impl<P: Planner> Job<P> {
    /// A job that begins now. Where it `opens` anything, its owner pushes into that.
    pub(crate) fn new(
        now: Moment,
        spec: JobSpec,
        claims: Claims,
        blocks: Held<P::Blocks>,
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

    /// Whether we connect to the agents of the ticket, where the ticket says that they are. Otherwise an agent is expected
    /// to come back by itself: the one that has invited us, whose engine has chosen the ticket and proves nothing by it of
    /// where others are, or in which life.
    fn dials(&self) -> bool {
        matches!(self.blocks, Held::Own(_))
    }

    /// The agents that the job talks to now.
    fn agents(&self) -> BTreeSet<&RankAddress> {
        self.agents_of(|_| true)
    }

    /// Those without which it cannot go on.
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

    /// Whether the job wants to stay connected to `agent`. Also where all is landed: an owner ends
    /// the leases of a holder that it takes for lost.
    fn wants(&self, agent: &AgentId) -> bool {
        self.stop.is_none() && self.agents().iter().any(|address| address.agent == *agent)
    }

    /// Whether nothing of it is under way any more, and nothing is left to do.
    fn is_over(&self) -> bool {
        match &self.invited {
            Some(invited) => invited.open.is_empty(),
            None if self.stop.is_some() => self.under_way(None).is_empty(),
            None => self.has_landed(),
        }
    }

    /// Whether a job that has failed so has leases of the owner's to cancel.
    fn cancels(&self, error: &JobError) -> bool {
        let keep = self.spec.keep_leases && *error != JobError::Cancelled;
        !keep && (self.admitted || !error.is_not_ours())
    }

    /// Tells the agents of the ticket that it is given up.
    fn cancel(&self) -> News {
        let content = Some(self.spec.content);
        self.notify(NoticeKind::Cancel { content })
    }

    fn notify(&self, says: NoticeKind) -> News {
        News::Notify(Box::new(Notify {
            ticket: self.spec.ticket.clone(),
            claims: self.claims.clone(),
            says,
            dials: self.dials(),
            reported: false,
        }))
    }
}

/// All pulls and pushes of our own, and pushes that were invited here.
#[derive(Debug)]
pub(crate) struct Jobs<P: Planner> {
    jobs: BTreeMap<JobId, Job<P>>,
}

/// What there is.
impl<P: Planner> Jobs<P> {
    pub(crate) fn new() -> Self {
        let jobs = BTreeMap::new();
        Self { jobs }
    }

    /// How many keep their blocks since memory is not done with them.
    pub(crate) fn stalled(&self) -> usize {
        self.jobs.values().filter(|job| job.stalled).count()
    }

    pub(crate) fn ids(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    pub(crate) fn blocks(&self, id: JobId) -> Option<&Held<P::Blocks>> {
        self.jobs.get(&id).map(|job| &job.blocks)
    }

    pub(crate) fn want(&self, agent: &AgentId) -> bool {
        self.jobs.values().any(|job| job.wants(agent))
    }

    /// Where to connect to an agent, if a job is to.
    pub(crate) fn dials(&self, agent: &AgentId) -> Option<&RankAddress> {
        let dialling = self.jobs.values();
        let dialling = dialling.filter(|job| job.dials() && job.wants(agent));
        let mut addresses = dialling.flat_map(|job| &job.claims.ranks);
        addresses.find(|address| address.agent == *agent)
    }

    fn like(&self, like: impl Fn(&Job<P>) -> bool) -> Vec<JobId> {
        let jobs = self.jobs.iter().filter(|(_, job)| like(job));
        jobs.map(|(id, _)| *id).collect()
    }

    /// What a pull or a push waits for.
    pub(crate) fn awaits(&self, cx: &Context<P>, peers: &Peers, flows: &Flows<P>, id: JobId) -> Option<Waiting> {
        let job = self.jobs.get(&id)?;
        let (agent, transfer, idle) = match &job.invited {
            None => job.first_open(cx)?,
            Some(invited) => {
                let (agent, idle) = invited.first_unheard(&job.claims)?;
                let opened = |t: &&Transfer<P>| matches!(t.side, Side::Lease(key) if invited.open.contains(&key));
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
        // The ticket's address may not have been asked: the agent has come by itself, or is still sought where it was before.
        let asked = peers.address(agent).filter(|_| on != Awaited::Plan);
        Some(Waiting { on, agent: agent.clone(), address: asked.map(shown) })
    }
}

/// How jobs begin and go on.
impl<P: Planner> Jobs<P> {
    /// Begins a job. It goes on when it is [advanced](Self::advance).
    pub(crate) fn begin(&mut self, g: &mut Ground<'_, P>, id: JobId, job: Job<P>) {
        if job.dials() {
            for address in job.agents() {
                g.peers.hurry(g.cx, address);
            }
        }
        self.jobs.insert(id, job);
    }

    pub(crate) fn advance(&mut self, g: &mut Ground<'_, P>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.stop.is_none()
            && let Err(error) = job.advance(g, id)
        {
            return self.stop(g, id, error);
        }
        self.finish_if_over(g.cx, id);
    }

    /// A plan is compiled, or cannot be: what waits for it goes on, or is over.
    pub(crate) fn compiled(&mut self, g: &mut Ground<'_, P>, ask: &PlanAsk, outcome: Result<(), &Text>) {
        let waits = |job: &Job<P>| job.waits_for(ask);
        for id in self.like(waits) {
            match outcome {
                Ok(()) => self.advance(g, id),
                // Its last connection was lost meanwhile. With the next, it is asked for again.
                Err(_) if g.cx.planner.ranks(&ask.peer).is_none() => {}
                Err(why) => self.stop(g, id, JobError::Plan { why: why.clone() }),
            }
        }
    }

    /// An agent is connected: whatever wants it goes on.
    pub(crate) fn agent_up(&mut self, g: &mut Ground<'_, P>, agent: &AgentId) {
        for id in self.like(|job| job.wants(agent)) {
            self.advance(g, id);
        }
    }

    /// `agent` cannot be reached, or does not talk to us, so that waiting for it is over.
    pub(crate) fn stop_all_that_need(&mut self, g: &mut Ground<'_, P>, agent: &AgentId, error: &JobError) {
        let needs = |job: &Job<P>| job.needed().iter().any(|address| address.agent == *agent);
        for id in self.like(needs) {
            self.stop(g, id, error.clone());
        }
    }

    /// An owner has let a job in, though it has to wait.
    pub(crate) fn admitted(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.admitted = true;
        }
    }

    /// Bytes of a job are about to move.
    pub(crate) fn moves(&mut self, cx: &Context<P>, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.moved.get_or_insert(cx.now);
        }
    }

    /// A job takes longer than it may.
    pub(crate) fn timed_out(&mut self, g: &mut Ground<'_, P>, id: JobId) {
        if let Some(job) = self.jobs.get(&id) {
            let timeout = job.spec.timeout;
            let waiting = self.awaits(g.cx, g.peers, g.flows, id);
            self.stop(g, id, JobError::TimedOut { timeout, waiting });
        }
    }

    /// Ends a job without success: as soon as nothing of it is under way any more. The first reason stays.
    pub(crate) fn stop(&mut self, g: &mut Ground<'_, P>, id: JobId, error: JobError) {
        let job = self.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| job.stop.is_none()) else {
            return;
        };
        job.stop = Some(error);
        match &job.invited {
            None => job.stop_routes(g, id),
            Some(invited) => {
                let opened = invited.open.iter().copied();
                g.cx.tell(News::GiveUp(opened.collect()));
            }
        }
        self.finish_if_over(g.cx, id);
    }

    /// The device of a rank is lost, and with it what the blocks of some jobs held. Invited pushes end with their leases.
    pub(crate) fn lose(&mut self, g: &mut Ground<'_, P>, rank: Rank) {
        let own = |job: &Job<P>| matches!(job.blocks, Held::Own(_));
        for id in self.like(|job| own(job) && job.spec.ranks.contains(&rank)) {
            self.stop(g, id, JobError::DeviceLost { rank });
        }
    }

    /// Memory of a rank does not end what it does for a job: the job fails now, and ends when the memory is done after all.
    pub(crate) fn stall(&mut self, g: &mut Ground<'_, P>, id: JobId, rank: Rank) {
        self.stop(g, id, JobError::DeviceStalled { rank });
        let job = self.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| !job.stalled) else {
            return;
        };
        job.stalled = true;
        // The agents of the ticket hear of it now: the end may never come.
        if job.stop.as_ref().is_some_and(|error| job.cancels(error)) {
            g.cx.tell(job.cancel());
        }
        match job.blocks {
            Held::Own(_) => g.cx.act(Action::JobStalled(id, rank)),
            Held::Of(BlocksOf::Lease(key)) => {
                g.cx.tell(News::Stalled(Side::Lease(key), rank, None));
            }
            Held::Of(BlocksOf::Job(_)) => {}
        }
    }

    /// Ends a job that is over.
    fn finish_if_over(&mut self, cx: &mut Context<P>, id: JobId) {
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
        let told = match &error {
            // It was told when its memory stalled.
            Some(error) => (!job.stalled && job.cancels(error)).then(|| job.cancel()),
            // Where the owner has pushed, every write lease has been told so.
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
            }),
        };
        match job.blocks {
            Held::Own(blocks) => cx.act(Action::JobDone { job: id, result, blocks }),
            Held::Of(BlocksOf::Lease(key)) => {
                let landed = result.is_ok();
                cx.act(Action::Pushed(key, result));
                cx.tell(News::PushOver { key, landed });
            }
            Held::Of(BlocksOf::Job(_)) => {}
        }
        if let Some(news) = told {
            cx.tell(news);
        }
    }
}
