//! The end of every entry: the events of parts and of leases are delivered to the parts that they concern, until none are left.

use std::collections::BTreeSet;
use std::sync::Arc;

use transload_plan::ids::{AgentId, Direction, Incarnation, Rank, TransferId};

use super::Machine;
use crate::action::{Action, BlocksOf, CloseReason, Held};
use crate::context::Timer;
use crate::deployments::KnownDeployments;
use crate::event::{Event, Notify, Side, Why};
use crate::ids::{ConnId, JobId, NoticeId};
use crate::job::{Job, JobSpec, Jobs};
use crate::lease::{LeaseEvent, LeaseKey};
use crate::lower::Lower;
use crate::message::Message;
use crate::moment::Moment;
use crate::notice::Notices;
use crate::outcome::{JobError, RouteReport};
use crate::owner::Owner;
use crate::path::negotiation::{MAX_WORD, Negotiation, Steps, Traveller};
use crate::peers::NoConnection;
use crate::refusal::{Failure, Text};

/// The frame around every entry.
impl<D: KnownDeployments> Machine<D> {
    pub(super) fn enter<R>(&mut self, now: Moment, entry: impl FnOnce(&mut Self) -> R) -> R {
        self.cx.now = now;
        let result = entry(self);
        self.settle();
        result
    }

    /// Delivers the events of parts and of leases until none are left.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some(event) = self.owner.leases.poll_event() {
                self.on_lease(event);
            } else if let Some(event) = self.cx.events.pop_front() {
                self.on_event(event);
            } else {
                return;
            }
        }
    }

    /// Borrows the parts separately: the ones that others build on, then the owner, the jobs and the notices.
    pub(super) fn parts(&mut self) -> (Lower<'_, D>, &mut Owner<D>, &mut Jobs<D>, &mut Notices) {
        let lower = Lower { cx: &mut self.cx, peers: &mut self.peers, flows: &mut self.flows, paths: &mut self.paths };
        (lower, &mut self.owner, &mut self.jobs, &mut self.notices)
    }

    pub(super) fn stop(&mut self, job: JobId, error: JobError) {
        let (mut lower, _, jobs, _) = self.parts();
        jobs.stop(&mut lower, job, error);
    }

    pub(super) fn on_timer(&mut self, timer: Timer) {
        let (mut lower, _, jobs, notices) = self.parts();
        match timer {
            Timer::Hello(conn) => lower.peers.close(lower.cx, conn, CloseReason::HelloLate),
            Timer::Dial(agent) => lower.peers.dial_due(lower.cx, &agent),
            Timer::Fence(transfer) => lower.flows.fence_late(lower.cx, transfer),
            Timer::Stall(transfer) => lower.flows.stalled(lower.cx, transfer),
            Timer::Heartbeat(transfer) => lower.flows.heartbeat(lower.cx, transfer),
            Timer::Job(job) => jobs.timed_out(&mut lower, job),
            Timer::Invite(job, agent) => jobs.invite_due(&mut lower, job, &agent),
            Timer::Away(job) => jobs.away(&mut lower, job),
            Timer::Route(job, route) => jobs.route_due(&mut lower, job, route),
            Timer::Notice(notice) => notices.over(lower.cx, notice),
        }
    }

    pub(super) fn on_talk(&mut self, conn: ConnId, message: Message) {
        let (mut lower, owner, jobs, notices) = self.parts();
        match message {
            Message::Pull(ask) => owner.on_ask(&mut lower, conn, Direction::Pull, Box::new(ask)),
            Message::Push(ask) => owner.on_ask(&mut lower, conn, Direction::Push, Box::new(ask)),
            Message::Refused { transfer, .. }
            | Message::Accepted { transfer, .. }
            | Message::Waiting { transfer, .. }
            | Message::Commit { transfer, .. }
            | Message::Landed { transfer } => lower.flows.on_message(lower.cx, conn, transfer, message),
            Message::Abort { transfer, .. } => {
                owner.forget_ask(conn, transfer);
                lower.flows.on_message(lower.cx, conn, transfer, message);
            }
            Message::Notice(notice) => owner.on_notice(lower.cx, lower.peers, conn, &notice),
            Message::NoticeHeard { id, outcome } => {
                if let Some(agent) = lower.peers.agent(conn) {
                    notices.heard(lower.cx, NoticeId(id), agent, Some(outcome));
                }
            }
            Message::Invite(invitation) => owner.on_invitation(&mut lower, conn, invitation),
            Message::Invited { id, outcome } => jobs.on_invited(&mut lower, conn, JobId(id), outcome),
            Message::Path { word, .. } if word.len() > MAX_WORD => {
                let reason = CloseReason::Violation("a word of a path is too long");
                lower.peers.close(lower.cx, conn, reason);
            }
            Message::Path { path, word } => {
                let hear = |of: &mut dyn Negotiation, steps: &mut Steps| of.hear(&word, steps);
                lower.paths.negotiate(lower.cx, conn, path, hear);
            }
            // `Peers` has handled these.
            Message::Hello(_)
            | Message::DocumentWanted
            | Message::Document { .. }
            | Message::Welcome
            | Message::Unwelcome(_) => {}
        }
    }

    fn on_lease(&mut self, event: LeaseEvent<Held<D::Blocks>>) {
        let (mut lower, owner, jobs, _) = self.parts();
        match event {
            LeaseEvent::Claimed { key } => lower.cx.act(Action::LeaseClaimed(key)),
            LeaseEvent::Fence { end, transfers } => {
                for transfer in transfers {
                    if let Some(job) = owner.push_of(transfer) {
                        jobs.stop(&mut lower, job, JobError::LeaseEnded { end });
                        continue;
                    }
                    let failure = Failure::LeaseEnded { end };
                    lower.flows.fail(lower.cx, transfer, failure, true);
                }
            }
            LeaseEvent::Ended { key, end, blocks } => {
                owner.forget_plan(key);
                match blocks {
                    Held::Own(blocks) => lower.cx.act(Action::LeaseEnded { key, end, blocks }),
                    Held::Of(BlocksOf::Job(job)) => jobs.write_lease_ended(&mut lower, job, key, end),
                    Held::Of(BlocksOf::Lease(_)) => {}
                }
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        let (mut lower, owner, jobs, notices) = self.parts();
        match event {
            Event::Up(agent, incarnation) => self.agent_up(&agent, incarnation),
            Event::Lost { conn, agent, was_up } => {
                lower.paths.lost(conn);
                if let Some(agent) = agent {
                    self.connection_lost(conn, agent, was_up);
                }
            }
            Event::Unwelcome(agent, refusal) => {
                if refusal.is_misfit() {
                    notices.agent_misfits(lower.cx, &agent);
                }
                let error = JobError::Hello { agent: agent.clone(), refusal };
                jobs.stop_all_that_need(&mut lower, &agent, &error);
            }
            Event::Away(agent, why) => self.agent_away(agent, why),
            Event::Moves(side) => self.bytes_move(side),
            Event::Admitted(job) => jobs.admitted(job),
            Event::Accepted(transfer, job, route, path) => {
                let ready = jobs.route_accepted(job, route, path);
                lower.flows.read_if_ready(lower.cx, transfer, ready);
            }
            Event::Travels(transfer) => self.travels(transfer),
            Event::Stopped(conn, transfer) => lower.paths.end(conn, transfer),
            Event::Stalled(side, rank, transfer) => self.memory_stalled(side, rank, transfer),
            Event::PathLost(transfers, why) => {
                for transfer in transfers {
                    lower.flows.stream_failed(lower.cx, transfer, why.clone());
                }
            }
            Event::HangUp(conn, why) => lower.peers.close(lower.cx, conn, CloseReason::PathFailed(why)),
            Event::Read(transfer) => self.commit_if_alive(transfer),
            Event::Whole(transfer) => self.land_if_alive(transfer),
            Event::Landed(transfer) => self.landed(transfer),
            Event::Gone(transfer, side, peer_rank, why) => match side {
                Side::Lease(key) => {
                    if let Why::Failed(failure) = why {
                        self.push_failed(key, peer_rank, failure);
                    }
                    let (mut lower, owner, ..) = self.parts();
                    owner.unpin(&mut lower, key, peer_rank, transfer);
                }
                Side::Job { job, route } => jobs.route_ended(&mut lower, job, route, why),
            },
            Event::PushRefused(job, conn, refusal) => jobs.push_refused(&mut lower, job, conn, refusal),
            Event::Invited { job, key, invitation, into, ready: (layers, prefilled) } => {
                let invitation = Arc::unwrap_or_clone(invitation);
                let spec = JobSpec::invited(key.rank, invitation, &into, prefilled);
                let blocks = Held::Of(BlocksOf::Lease(key));
                let push = Job::new(lower.cx.now, spec, into, blocks, BTreeSet::new());
                jobs.begin(&mut lower, job, push);
                jobs.advance(&mut lower, job);
                for (layer, tokens) in layers {
                    jobs.ready(&mut lower, job, key.rank, layer, tokens);
                }
            }
            // A lease that is ending already returns an error, which is harmless.
            Event::GiveUp(leases) => {
                for key in leases {
                    let _ = owner.leases.cancel(lower.cx.now, key);
                }
            }
            Event::PushOver { key, landed } => owner.push_over(key, landed),
            Event::Notify(notify) => {
                self.notify(*notify);
            }
        }
    }
}

/// Events that concern several parts.
impl<D: KnownDeployments> Machine<D> {
    fn agent_up(&mut self, agent: &AgentId, incarnation: Incarnation) {
        self.owner.agent_up(&mut self.cx, agent, incarnation);
        self.notices.agent_up(&mut self.cx, &self.peers, agent);
        let (mut lower, _, jobs, _) = self.parts();
        jobs.agent_up(&mut lower, agent);
    }

    fn connection_lost(&mut self, conn: ConnId, agent: AgentId, was_up: bool) {
        let (mut lower, owner, jobs, _) = self.parts();
        if lower.peers.connection(&agent).is_none() {
            if was_up {
                owner.leases.agent_lost(lower.cx.now, &agent);
            }
            let why = "the connection was lost".into();
            let cause = if was_up { NoConnection::Lost } else { NoConnection::Failed };
            lower.peers.dial_failed(lower.cx, agent, cause, why);
        }
        owner.forget_asks(conn);
        lower.flows.disconnected(lower.cx, conn);
        jobs.invite_again(&mut lower, conn);
    }

    /// Handles an agent to which no connection is left. With a reason `why`, the jobs that need it fail.
    fn agent_away(&mut self, agent: AgentId, why: Option<Text>) {
        let (mut lower, _, jobs, notices) = self.parts();
        if let Some(why) = why {
            let error = JobError::Unreachable { agent: agent.clone(), why };
            jobs.stop_all_that_need(&mut lower, &agent, &error);
            // Stopped jobs may have left notices, which decide whether the agent is dialled again.
            lower.cx.emit(Event::Away(agent, None));
            return;
        }
        let address = jobs.dials(&agent).or_else(|| notices.dials(&agent));
        let address = address.cloned();
        lower.peers.dial_again(lower.cx, &agent, address);
    }

    fn travels(&mut self, transfer: TransferId) {
        let t = self.flows.get(transfer).filter(|t| !t.is_fencing());
        let Some((t, path)) = t.and_then(|t| Some((t, t.flow.path?))) else {
            return;
        };
        let traveller = Traveller { transfer, way: t.way(), lanes: t.flow.lanes };
        self.paths.begin(&mut self.cx, t.flow.conn, path, traveller);
    }

    /// Fails the owner of the blocks of a transfer whose memory does not finish its work. The blocks stay held.
    fn memory_stalled(&mut self, side: Side, rank: Rank, transfer: Option<TransferId>) {
        let (mut lower, owner, jobs, _) = self.parts();
        match side {
            Side::Job { job, .. } => jobs.stall(&mut lower, job, rank),
            Side::Lease(key) => match owner.stall(lower.cx, key, transfer) {
                Some(Held::Own(_)) => lower.cx.act(Action::LeaseStalled(key)),
                Some(&Held::Of(BlocksOf::Job(job))) => jobs.stall(&mut lower, job, rank),
                Some(Held::Of(BlocksOf::Lease(_))) | None => {}
            },
        }
    }

    /// Fails a pull whose owner's push has failed because of a device: the pull would wait in vain.
    fn push_failed(&mut self, key: LeaseKey, peer_rank: Rank, failure: Failure) {
        if let Some(job) = self.owner.opened_by(&key).filter(|_| failure.is_of_device()) {
            let error = JobError::Failed {
                rank: key.rank,
                peer_rank,
                attempts: self.owner.leases.attempts(&key, peer_rank),
                failure,
            };
            self.stop(job, error);
        }
    }

    fn bytes_move(&mut self, side: Side) {
        let job = match side {
            Side::Job { job, .. } => Some(job),
            Side::Lease(key) => self.owner.opened_by(&key),
        };
        if let Some(job) = job {
            self.jobs.moves(&self.cx, job);
        }
    }

    /// Returns the lease whose blocks a transfer reads, even if an invited push reads them.
    pub(crate) fn leased_to(&self, side: Side) -> Option<LeaseKey> {
        match side {
            Side::Lease(key) => Some(key),
            Side::Job { job, .. } => match self.jobs.blocks(job)? {
                Held::Of(BlocksOf::Lease(key)) => Some(*key),
                _ => None,
            },
        }
    }

    fn commit_if_alive(&mut self, transfer: TransferId) {
        let Some(t) = self.flows.get(transfer).filter(|t| t.is_read()) else {
            return;
        };
        let side = t.side;
        if let Some(key) = self.leased_to(side)
            && !self.owner.leases.is_alive(self.cx.now, key)
        {
            // The table has reported why the lease ended, and the fence follows from that.
            return;
        }
        if let Side::Job { job, route } = side {
            self.jobs.route_committed(job, route);
        }
        self.flows.commit(&mut self.cx, transfer);
        if let Side::Lease(key) = side {
            self.owner.leases.unpin(self.cx.now, key, transfer);
        }
    }

    fn land_if_alive(&mut self, transfer: TransferId) {
        let Some(t) = self.flows.get(transfer).filter(|t| !t.is_fencing()) else {
            return;
        };
        if let Side::Lease(key) = t.side
            && !self.owner.leases.is_alive(self.cx.now, key)
        {
            // A write lease that is over accepts nothing more; the fence follows.
            return;
        }
        self.landed(transfer);
    }

    fn landed(&mut self, transfer: TransferId) {
        let (mut lower, owner, jobs, _) = self.parts();
        let Some(t) = lower.flows.land(lower.cx, transfer) else {
            return;
        };
        let (flow, peer_rank) = (&t.flow, t.flow.peer_rank);
        lower.paths.end(flow.conn, transfer);
        match t.side {
            Side::Lease(key) => {
                if let Some((job, path)) = owner.opened_by(&key).zip(flow.path) {
                    let landed = RouteReport {
                        rank: flow.rank,
                        peer_rank,
                        bytes: flow.bytes,
                        path,
                        attempts: owner.leases.attempts(&key, peer_rank),
                    };
                    jobs.write_lease_landed(job, landed);
                }
                owner.leases.landed(key, peer_rank);
                owner.unpin(&mut lower, key, peer_rank, transfer);
            }
            Side::Job { job, route } => jobs.route_landed(&mut lower, job, route),
        }
    }

    /// Notifies all agents of a ticket, including this one.
    pub(super) fn notify(&mut self, notify: Notify) -> NoticeId {
        let (lower, owner, _, notices) = self.parts();
        let me = lower.cx.me.agent.clone();
        let cx = lower.cx;
        let (set, life, says) = (notify.claims.set, notify.claims.incarnation, notify.says.clone());
        let id = notices.offer(cx, lower.peers, notify);
        if notices.want(&me) {
            // If the ticket is of an earlier life of this agent, its leases are gone already.
            let alive = life == cx.me.incarnation;
            let outcome = alive.then(|| owner.on_own_notice(cx, set, &says));
            notices.heard(cx, id, &me, outcome);
        }
        id
    }
}
