//! Notices: done, cancel and renew, to every agent that the ticket names, until each has heard.
//!
//! Also to those without a route: their blocks are pinned by the same request. An owner that cannot
//! be reached within [`Options::notice_wait`](super::Options::notice_wait) is left to its own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::message::{Message, Notice, NoticeKind};
use super::owner::permission;
use super::peers::Dialler;
use super::planner::{Planner, RouteAsk};
use super::refusal::{Refusal, Role};
use super::waiting::Parked;
use super::{Action, ConnId, JobError, Machine, NoticeId, Timer};
use crate::content::ContentDigest;
use crate::ids::{AgentId, Direction, Incarnation, Rank};
use crate::lease::{Holder, LeaseDone, LeaseKey, UseError};
use crate::moment::Moment;
use crate::ticket::{Claims, RankAddress, Ticket};

/// A notice that has not been heard by all. Memory: the ticket, and an address for each agent.
#[derive(Debug)]
pub(crate) struct Pending {
    ticket: Ticket,
    says: NoticeKind,
    incarnation: Incarnation,
    waiting: BTreeMap<AgentId, RankAddress>,
    total: usize,
    heard: usize,
    left: Option<Duration>,
    refusal: Option<Refusal>,
    dialler: Dialler,
    /// Whether somebody wants to know how it went.
    reported: bool,
}

impl Pending {
    pub(crate) fn wants(&self, agent: &AgentId) -> bool {
        self.waiting.contains_key(agent)
    }

    /// Whether to dial `agent` for it.
    pub(crate) fn dials(&self, agent: &AgentId) -> bool {
        self.dialler == Dialler::Us && self.wants(agent)
    }

    pub(crate) fn address(&self, agent: &AgentId) -> Option<&RankAddress> {
        self.waiting.get(agent)
    }
}

/// What the holder of a ticket does.
impl<B, P: Planner> Machine<B, P> {
    /// Gives up what a ticket stands for, where no job has begun: a request that was aborted before
    /// it was scheduled. With `content`, only leases of that content are cancelled.
    pub fn cancel_ticket(
        &mut self,
        now: Moment,
        ticket: &Ticket,
        content: Option<ContentDigest>,
    ) -> Result<NoticeId, JobError> {
        let claims = self.open_ticket(ticket)?;
        let says = NoticeKind::Cancel { content };
        let id = self.notify(now, ticket.clone(), claims, says, Dialler::Us, true);
        self.settle(now);
        Ok(id)
    }

    /// Asks the owner to let the leases live for `ttl` from then at least: for a request that has to
    /// wait before it can pull.
    pub fn renew_ticket(
        &mut self,
        now: Moment,
        ticket: &Ticket,
        ttl: Duration,
    ) -> Result<NoticeId, JobError> {
        let claims = self.open_ticket(ticket)?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let says = NoticeKind::Renew { ttl_ms };
        let id = self.notify(now, ticket.clone(), claims, says, Dialler::Us, true);
        self.settle(now);
        Ok(id)
    }

    pub(super) fn notify(
        &mut self,
        now: Moment,
        ticket: Ticket,
        claims: Claims,
        says: NoticeKind,
        dialler: Dialler,
        reported: bool,
    ) -> NoticeId {
        let id = NoticeId(self.next_number());
        let life = claims.incarnation;
        let routes_only = fault!(self, NoticeOnlyFirst);
        let ranks = claims
            .ranks
            .into_iter()
            .take(if routes_only { 1 } else { usize::MAX });
        let waiting: BTreeMap<_, _> = ranks.map(|a| (a.agent.clone(), a)).collect();
        let agents: Vec<_> = waiting.values().cloned().collect();
        let pending = Pending {
            ticket,
            says,
            incarnation: life,
            total: waiting.len(),
            waiting,
            heard: 0,
            left: None,
            refusal: None,
            dialler,
            reported,
        };
        if self.notices.len() >= self.options.notices
            && let Some(&oldest) = self.notices.keys().next()
        {
            self.notice_over(oldest);
        }
        self.notices.insert(id, pending);
        self.timers
            .set(Timer::Notice(id), now + self.options.notice_wait);
        for address in agents {
            if address.agent == self.me.agent {
                let outcome = self.notify_self(now, id, life);
                self.heard(id, &address.agent, outcome);
                continue;
            }
            if dialler == Dialler::Us {
                self.leave_past_life(now, &address, life, now);
                self.want(&address);
            }
            self.send_notice(id, &address.agent);
        }
        id
    }

    /// Does what our own notice says to our own leases: nobody connects to itself. Nothing where the ticket is of
    /// a life that is over.
    fn notify_self(
        &mut self,
        now: Moment,
        id: NoticeId,
        life: Incarnation,
    ) -> Option<Result<u64, Refusal>> {
        let notice = self
            .notices
            .get(&id)
            .filter(|_| life == self.me.incarnation)?;
        let set = notice.ticket.open(&self.me.ticket_key).ok()?.set;
        let renewed = match notice.says {
            NoticeKind::Renew { ttl_ms } => Some(Duration::from_millis(ttl_ms)),
            NoticeKind::Cancel { .. } | NoticeKind::Done { .. } => None,
        };
        let mut outcome = Err(Refusal::UnknownLease);
        for rank in self.me.ranks.clone() {
            let key = LeaseKey { set, rank };
            let done = match renewed {
                Some(ttl) => self.leases.renew(now, key, ttl),
                None => self.leases.cancel(now, key),
            };
            if done.is_ok() {
                outcome = Ok(renewed.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(0)));
            }
        }
        Some(outcome)
    }

    /// Sends everything that waits for this agent, on a connection that has just come up.
    pub(super) fn send_notices(&mut self, agent: &AgentId) {
        let waiting = self
            .notices
            .iter()
            .filter(|(_, notice)| notice.wants(agent));
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        waiting
            .into_iter()
            .for_each(|id| self.send_notice(id, agent));
    }

    fn send_notice(&mut self, id: NoticeId, agent: &AgentId) {
        let Some(conn) = self.connection(agent) else {
            return;
        };
        let incarnation = self.peer(conn).map(|peer| peer.holder.incarnation);
        let Some(notice) = self.notices.get(&id) else {
            return;
        };
        if incarnation != Some(notice.incarnation) {
            // The life that the ticket means is over, and its leases with it.
            self.heard(id, agent, None);
            return;
        }
        let message = Notice {
            id: id.0,
            ticket: notice.ticket.clone(),
            says: notice.says.clone(),
        };
        self.send(conn, Message::Notice(message));
    }

    pub(super) fn on_heard(&mut self, conn: ConnId, id: u64, outcome: Result<u64, Refusal>) {
        if let Some(agent) = self.peer_agent(conn) {
            self.heard(NoticeId(id), &agent, Some(outcome));
        }
    }

    fn heard(&mut self, id: NoticeId, agent: &AgentId, outcome: Option<Result<u64, Refusal>>) {
        let Some(notice) = self.notices.get_mut(&id) else {
            return;
        };
        if notice.waiting.remove(agent).is_none() {
            return;
        }
        match outcome {
            None => {}
            Some(Ok(left)) => {
                let left = Duration::from_millis(left);
                notice.heard += 1;
                notice.left = Some(notice.left.map_or(left, |known| known.min(left)));
            }
            Some(Err(refusal)) => notice.refusal = Some(refusal),
        }
        if notice.waiting.is_empty() {
            self.notice_over(id);
        }
    }

    /// Nobody is left to hear it, or nobody will.
    pub(super) fn notice_over(&mut self, id: NoticeId) {
        self.timers.clear(&Timer::Notice(id));
        if let Some(notice) = self.notices.remove(&id)
            && notice.reported
        {
            self.actions.push_back(Action::NoticeDone {
                notice: id,
                heard: (notice.heard, notice.total),
                left: notice.left,
                refusal: notice.refusal,
            });
        }
    }
}

/// What the owner does.
impl<B, P: Planner> Machine<B, P> {
    pub(super) fn on_notice(&mut self, now: Moment, conn: ConnId, notice: Notice) {
        let id = notice.id;
        let outcome = self.take_notice(now, conn, &notice);
        self.send(conn, Message::NoticeHeard { id, outcome });
    }

    fn take_notice(&mut self, now: Moment, conn: ConnId, notice: &Notice) -> Result<u64, Refusal> {
        let claims = self.authenticate(conn, &notice.ticket)?;
        let direction = claims.direction;
        self.permit(
            conn,
            match notice.says {
                NoticeKind::Renew { .. } => Role::Renew,
                NoticeKind::Done { .. } | NoticeKind::Cancel { .. } => permission(direction),
            },
        )?;
        let peer = self.peer(conn).ok_or(Refusal::WrongPeer)?;
        let holder = peer.holder;
        if let NoticeKind::Done { ranks, .. } = &notice.says
            && let Some(&rank) = ranks.iter().find(|rank| !peer.ranks.contains(rank))
        {
            return Err(Refusal::RankNotYours { rank });
        }
        let agent = self.peer_agent(conn).ok_or(Refusal::WrongPeer)?;
        let (set, ours) = (claims.set, self.me.ranks.clone());
        let mut outcome = Err(Refusal::UnknownLease);
        for rank in ours {
            let key = LeaseKey { set, rank };
            let applied = if self.leases.knows(&key) {
                self.apply(now, key, direction, &agent, holder, &notice.says)
            } else {
                self.park_notice(now, key, direction, &agent, holder, &notice.says)
            };
            outcome = match (outcome, applied) {
                (Ok(known), Ok(left)) => Ok(left.min(known)),
                (Err(Refusal::UnknownLease), applied) => applied,
                (Ok(known), Err(Refusal::UnknownLease)) => Ok(known),
                (outcome, applied) => outcome.and(applied),
            };
        }
        outcome
    }

    fn park_notice(
        &mut self,
        now: Moment,
        key: LeaseKey,
        direction: Direction,
        agent: &AgentId,
        holder: Holder,
        says: &NoticeKind,
    ) -> Result<u64, Refusal> {
        if matches!(says, NoticeKind::Renew { .. }) {
            return Err(Refusal::UnknownLease);
        }
        let same = |parked: &Parked| match parked {
            Parked::Notice {
                holder: by,
                says: said,
                ..
            } => *by == holder && said == says,
            Parked::Ask { .. } | Parked::Invitation { .. } => false,
        };
        if self.early.any_for(&key, same) {
            return Ok(0);
        }
        let parked = Parked::Notice {
            key,
            direction,
            agent: agent.clone(),
            holder,
            says: says.clone(),
        };
        let limit = u32::try_from(self.options.early_per_agent).unwrap_or(u32::MAX);
        let parked = self.early.park(now, key, agent, parked);
        parked.map(|()| 0).map_err(|_| Refusal::Busy { limit })
    }

    /// Does what a notice says to one lease. Gives the milliseconds that a renewed one has left.
    pub(super) fn apply(
        &mut self,
        now: Moment,
        key: LeaseKey,
        direction: Direction,
        agent: &AgentId,
        holder: Holder,
        says: &NoticeKind,
    ) -> Result<u64, Refusal> {
        let applied = match says {
            NoticeKind::Done { ranks, content } => {
                let needed = self.must_write(key, direction, &holder)?;
                let said = LeaseDone {
                    agent,
                    holder,
                    ranks,
                    content,
                    needed: &needed,
                };
                self.leases.done(now, key, direction, &said)
            }
            NoticeKind::Cancel { content } => {
                let content = content.as_ref();
                self.leases.cancel_by(now, key, direction, &holder, content)
            }
            NoticeKind::Renew { ttl_ms } => {
                let ttl = Duration::from_millis(*ttl_ms);
                let left = self.leases.renew_by(now, key, direction, &holder, ttl)?;
                return Ok(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            }
        };
        match applied {
            // It was said before, or it is too late to matter: heard all the same.
            Ok(()) | Err(UseError::Ended { .. }) => Ok(0),
            Err(error) => Err(match says {
                NoticeKind::Done { content, .. }
                | NoticeKind::Cancel {
                    content: Some(content),
                } => self.refuse_use(key, content, error),
                _ => error.into(),
            }),
        }
    }

    /// The ranks of the pusher that have to write for this rank's blocks to be whole.
    fn must_write(
        &mut self,
        key: LeaseKey,
        direction: Direction,
        holder: &Holder,
    ) -> Result<BTreeSet<Rank>, Refusal> {
        let Some((start, valid_tokens)) = self.leases.range(&key) else {
            return Ok(BTreeSet::new());
        };
        if direction == Direction::Pull {
            return Ok(BTreeSet::new());
        }
        let routes = self.planner.routes(&RouteAsk {
            peer: holder.deployment,
            rank: key.rank,
            local_is_source: false,
            start,
            tokens: valid_tokens - start,
            by_layer: false,
        });
        let routes = routes.map_err(|why| Refusal::Unplannable { why: why.into() })?;
        Ok(routes.into_iter().map(|route| route.peer_rank).collect())
    }
}
