//! Pulls whose owner is invited to push.
//!
//! ```text
//!  ┌─────────┐ connected: invite every  ┌─────────┐ pushed by all   every opening
//!  │ Opening ├─────────────────────────►│ Waiting ├────────────────► completed: done
//!  └─────────┘ agent of the ticket      └────┬────┘
//!   a lease for each local rank              │ refused by either, unreachable, restarted, given up,
//!                                            │ or an opening has ended otherwise
//!                                            ▼
//!                          stop: every other opening is cancelled and fenced,
//!                                notice Cancel to every rank's agent
//! ```
//!
//! From the invitation on the owner of the ticket is the holder of the openings, and all is as with any
//! push. The pull has succeeded when every opening has completed, and its blocks are given back when every
//! opening has ended.

use std::collections::{BTreeMap, BTreeSet};

use super::{Job, JobError, JobReport, JobSpec, RouteReport};
use crate::ids::{AgentId, Direction};
use crate::lease::{LeaseEnd, LeaseKey, LeaseSpec};
use crate::moment::Moment;
use crate::ticket::{Claims, RankAddress, Ticket};
use crate::wire::awaited::Awaited;
use crate::wire::held::Held;
use crate::wire::message::{Ask, Invitation, Message, NoticeKind};
use crate::wire::peers::Dialler;
use crate::wire::planner::Planner;
use crate::wire::refusal::{Refusal, Role};
use crate::wire::transfer::Transfer;
use crate::wire::{Action, BlocksOf, ConnId, JobId, Machine, Timer};

/// A pull of this kind. Memory: about 600 bytes, two tickets, the claims of the owner's, and 40 bytes for each route.
#[derive(Debug)]
pub(crate) struct Invited<B> {
    pub(crate) spec: JobSpec<B>,
    pub(crate) claims: Claims,
    /// The ticket for the openings.
    into: Ticket,
    started: Moment,
    /// When its first byte moved.
    moved: Option<Moment>,
    /// Agents of the ticket that have not said whether they push.
    unheard: BTreeMap<AgentId, Unheard>,
    /// Whether some agent of the owner pushes: then there is something to cancel.
    admitted: bool,
    /// Openings that have not ended.
    open: BTreeSet<LeaseKey>,
    routes: Vec<RouteReport>,
    stop: Option<JobError>,
}

/// What an agent was told that has not said whether it pushes.
#[derive(Debug, Default)]
struct Unheard {
    /// The connection on which it was invited last.
    on: Option<ConnId>,
    /// How often it was busy.
    busy: u32,
    /// Whether it is left alone for a while, having been busy.
    pausing: bool,
}

/// What such a pull opens, and the ticket for it.
pub(super) struct Openings {
    into: Ticket,
    keys: BTreeSet<LeaseKey>,
}

impl<B> Invited<B> {
    /// Whether it cannot go on without `agent`, and wants to stay connected to it.
    pub(crate) fn wants(&self, agent: &AgentId) -> bool {
        self.stop.is_none() && self.claims.ranks.iter().any(|a| a.agent == *agent)
    }

    fn agents(&self) -> BTreeSet<&RankAddress> {
        self.claims.ranks.iter().collect()
    }

    /// The first agent that has not said whether it pushes, else the first of whom nothing has landed, else the first of
    /// all; and what is awaited of it.
    pub(in crate::wire) fn first_unheard(&self) -> Option<(&RankAddress, Awaited)> {
        let mut ranks = self.claims.ranks.iter();
        let unheard = ranks.find_map(|rank| Some((rank, self.unheard.get(&rank.agent)?)));
        match unheard {
            Some((rank, said)) if said.pausing => Some((rank, Awaited::Turn)),
            Some((rank, _)) => Some((rank, Awaited::Answer)),
            None => {
                let landed = |at: u32| self.routes.iter().any(|route| route.peer_rank.0 == at);
                let ranks = &self.claims.ranks;
                let late = (0..).zip(ranks).find(|(at, _)| !landed(*at));
                let late = late.map(|(_, rank)| rank).or(ranks.first());
                Some((late?, Awaited::Push))
            }
        }
    }

    pub(in crate::wire) fn opened(&self, key: &LeaseKey) -> bool {
        self.open.contains(key)
    }
}

impl<B, P: Planner> Machine<B, P> {
    /// Whether the blocks of such a pull can be opened. Gives the openings; none for any other.
    pub(super) fn check_openings(
        &mut self,
        now: Moment,
        spec: &JobSpec<B>,
    ) -> Result<Option<Openings>, JobError> {
        let Some(into) = &spec.into else {
            return Ok(None);
        };
        let claims = into.open(&self.me.ticket_key)?;
        let fault = |why: String| JobError::Opening { why: why.into() };
        if claims.direction != Direction::Push {
            return Err(fault(format!("their ticket is for a {}", claims.direction)));
        }
        let ours = (&self.me.cluster, self.me.deployment, self.me.incarnation);
        if (&claims.cluster, claims.owner, claims.incarnation) != ours {
            return Err(fault("their ticket is of another engine".to_owned()));
        }
        let (start, valid_tokens) = (claims.start, claims.valid_tokens);
        let end = spec.start.saturating_add(spec.tokens);
        if (spec.start, end) != (start, valid_tokens) {
            return Err(JobError::Tokens {
                start: spec.start,
                end,
                first: start,
                valid: valid_tokens,
            });
        }
        let set = claims.set;
        let keys = spec.ranks.iter().map(|&rank| LeaseKey { set, rank });
        let keys: BTreeSet<_> = keys.collect();
        for &key in &keys {
            let checked = self.leases.check_open(now, key, start, valid_tokens);
            checked.map_err(|reason| fault(reason.to_string()))?;
        }
        let into = into.clone();
        Ok(Some(Openings { into, keys }))
    }

    /// Opens the blocks, and invites whoever is connected.
    pub(super) fn begin_invited(
        &mut self,
        now: Moment,
        id: JobId,
        spec: JobSpec<B>,
        claims: Claims,
        Openings { into, keys }: Openings,
    ) {
        let agents = claims.ranks.iter().map(|address| address.agent.clone());
        let agents: BTreeSet<_> = agents.collect();
        let unheard = agents.iter().cloned();
        let unheard = unheard.map(|agent| (agent, Unheard::default()));
        let openings = keys.iter().map(|&key| LeaseSpec {
            key,
            direction: Direction::Push,
            content: spec.content,
            start: spec.start,
            valid_tokens: spec.start.saturating_add(spec.tokens),
            ttl: spec.timeout,
            hard_bound: spec.timeout,
            prefilled: true,
            blocks: Held::Of(BlocksOf::Job(id)),
        });
        let openings: Vec<_> = openings.collect();
        let job = Invited {
            spec,
            claims,
            into,
            started: now,
            moved: None,
            unheard: unheard.collect(),
            admitted: false,
            open: keys,
            routes: Vec::new(),
            stop: None,
        };
        agents.into_iter().for_each(|agent| self.hurry(agent));
        self.invited.insert(id, job);
        for opening in openings {
            self.open(now, opening);
        }
        self.advance_invited(now, id);
    }

    /// Invites whoever has come up, unless it is somebody else by now.
    pub(super) fn advance_invited(&mut self, now: Moment, id: JobId) {
        let Some(job) = self.invited.get(&id).filter(|job| job.stop.is_none()) else {
            return;
        };
        let (claims, started) = (job.claims.clone(), job.started);
        let addresses: Vec<_> = job.agents().into_iter().cloned().collect();
        for address in addresses {
            if !fault!(self, AnyIncarnation) {
                self.leave_past_life(now, &address, claims.incarnation, started);
            }
            let Some(conn) = self.connection(&address.agent) else {
                self.want(&address);
                continue;
            };
            if let Err(error) = self.check_owner(conn, &address.agent, &claims) {
                return self.stop_invited(now, id, error);
            }
            if let Err(refusal) = self.permit(conn, Role::Push) {
                let agent = address.agent;
                return self.stop_invited(now, id, JobError::PushRefused { agent, refusal });
            }
            self.invite(id, &address.agent, conn);
        }
    }

    fn invite(&mut self, id: JobId, agent: &AgentId, conn: ConnId) {
        let Some(job) = self.invited.get_mut(&id) else {
            return;
        };
        let Some(said) = job.unheard.get_mut(agent) else {
            return;
        };
        if said.pausing || said.on.replace(conn) == Some(conn) {
            return;
        }
        let invitation = Invitation {
            id: id.0,
            ticket: job.spec.ticket.clone(),
            into: job.into.clone(),
            content: job.spec.content,
            lanes: job.spec.lanes,
            by_layer: job.spec.by_layer,
            paths: job.spec.paths,
        };
        self.send(conn, Message::Invite(invitation));
    }

    /// What was said on a connection that is lost, and not answered, is said again where another is left.
    pub(in crate::wire) fn invite_again(&mut self, now: Moment, lost: ConnId) {
        let unheard = |job: &Invited<B>| job.unheard.values().any(|said| said.on == Some(lost));
        let jobs = self.invited.iter().filter(|(_, job)| unheard(job));
        for id in jobs.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.advance_invited(now, id);
        }
    }

    /// An agent of the owner pushes from now on, or will not.
    pub(in crate::wire) fn on_invited(
        &mut self,
        now: Moment,
        conn: ConnId,
        id: JobId,
        outcome: Result<(), Refusal>,
    ) {
        let agent = self.peer_agent(conn);
        let Some((job, agent)) = self.invited.get_mut(&id).zip(agent) else {
            return;
        };
        let Some(said) = job.unheard.get_mut(&agent) else {
            return;
        };
        let timer = Timer::Invite(id, agent.clone());
        match outcome {
            Err(refusal) if refusal.is_transient() => {
                if !said.pausing {
                    let busy = said.busy.saturating_add(1);
                    let (on, pausing) = (None, true);
                    *said = Unheard { on, busy, pausing };
                    self.timers.set(timer, now + self.options.pause(busy));
                }
                return;
            }
            Ok(()) => job.admitted = true,
            Err(refusal) => {
                let agent = agent.clone();
                self.stop_invited(now, id, JobError::NotPushed { agent, refusal });
            }
        }
        self.timers.clear(&timer);
        if let Some(job) = self.invited.get_mut(&id) {
            job.unheard.remove(&agent);
        }
    }

    /// An agent that was busy has been left alone for long enough.
    pub(in crate::wire) fn invite_due(&mut self, now: Moment, id: JobId, agent: &AgentId) {
        let job = self.invited.get_mut(&id);
        if let Some(said) = job.and_then(|job| job.unheard.get_mut(agent)) {
            said.pausing = false;
        }
        self.advance_invited(now, id);
    }

    /// The pull whose opening this is.
    pub(in crate::wire) fn opened_by(&self, key: &LeaseKey) -> Option<JobId> {
        match self.leases.blocks(key) {
            Some(Held::Of(BlocksOf::Job(id))) => Some(*id),
            _ => None,
        }
    }

    /// Bytes are about to be written into what was opened.
    pub(in crate::wire) fn opening_moves(&mut self, now: Moment, key: &LeaseKey) {
        let job = self.opened_by(key).and_then(|id| self.invited.get_mut(&id));
        if let Some(job) = job {
            job.moved.get_or_insert(now);
        }
    }

    /// A route has landed in what was opened, if it was for a pull.
    pub(in crate::wire) fn opening_landed(&mut self, key: &LeaseKey, landed: &Transfer) {
        let flow = &landed.flow;
        let attempts = self.leases.attempts(key, flow.peer_rank);
        let job = self.opened_by(key).and_then(|id| self.invited.get_mut(&id));
        if let Some((job, path)) = job.zip(flow.path) {
            job.routes.push(RouteReport {
                rank: flow.rank,
                peer_rank: flow.peer_rank,
                bytes: flow.bytes,
                path,
                attempts,
            });
        }
    }

    /// A push was refused. Where it is the owner's, into what was opened for a pull, the pull will not come
    /// to anything; and the owner may not even be heard when it says so.
    pub(in crate::wire) fn opening_refused(
        &mut self,
        now: Moment,
        conn: ConnId,
        ask: &Ask,
        refusal: &Refusal,
    ) {
        // It tries again after the first; the others are of attempts that later ones have overtaken.
        if refusal.is_transient()
            || matches!(refusal, Refusal::Superseded { .. } | Refusal::Consumed)
        {
            return;
        }
        let Ok(Claims { set, .. }) = self.authenticate(conn, &ask.ticket) else {
            return;
        };
        let rank = ask.destination;
        let Some(id) = self.opened_by(&LeaseKey { set, rank }) else {
            return;
        };
        let (agent, job) = (self.peer_agent(conn), self.invited.get(&id));
        let Some((agent, job)) = agent.zip(job) else {
            return;
        };
        if job.wants(&agent) && self.check_owner(conn, &agent, &job.claims).is_ok() {
            let refusal = refusal.clone();
            self.stop_invited(now, id, JobError::PushRefused { agent, refusal });
        }
    }

    /// Nothing touches the blocks of a rank any more.
    pub(in crate::wire) fn opening_ended(
        &mut self,
        now: Moment,
        id: JobId,
        key: LeaseKey,
        end: LeaseEnd,
    ) {
        let Some(job) = self.invited.get_mut(&id) else {
            return;
        };
        job.open.remove(&key);
        let timeout = job.spec.timeout;
        match end {
            LeaseEnd::Completed => {}
            LeaseEnd::Expired => {
                let late = self.late(id, timeout);
                self.stop_invited(now, id, late);
            }
            end => self.stop_invited(now, id, JobError::LeaseEnded { end }),
        }
        self.finish_invited(now, id);
    }

    /// Ends it without success, as soon as nothing is written any more. The first reason stays.
    pub(super) fn stop_invited(&mut self, now: Moment, id: JobId, error: JobError) {
        let Some(job) = self.invited.get_mut(&id).filter(|job| job.stop.is_none()) else {
            return;
        };
        job.stop = Some(error);
        for key in job.open.clone() {
            // One that is ending already is no error here.
            let _ = self.leases.cancel(now, key);
        }
    }

    fn finish_invited(&mut self, now: Moment, id: JobId) {
        if self.invited.get(&id).is_none_or(|job| !job.open.is_empty()) {
            return;
        }
        let Some(job) = self.invited.remove(&id) else {
            return;
        };
        for agent in job.unheard.into_keys() {
            self.timers.clear(&Timer::Invite(id, agent));
        }
        let result = match &job.stop {
            Some(error) => Err(error.clone()),
            None => Ok(JobReport::new(now, job.started, job.moved, job.routes)),
        };
        let (ticket, content) = (job.spec.ticket, job.spec.content);
        let keep = job.spec.keep_leases;
        self.actions.push_back(Action::JobDone {
            job: id,
            result,
            blocks: job.spec.blocks,
        });
        if let Some(error) = &job.stop
            && Job::<B>::cancels(error, keep, job.admitted)
        {
            let says = NoticeKind::Cancel {
                content: Some(content),
            };
            self.notify(now, ticket, job.claims, says, Dialler::Us, false);
        }
    }
}
