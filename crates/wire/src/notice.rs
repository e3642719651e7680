//! Notices: done, cancel and renew are sent to every agent that the ticket names, until each has answered.
//!
//! They are also sent to agents without a route, since the same request pins their blocks. If an owner cannot be
//! reached within [`Options::notice_wait`](crate::Options::notice_wait), its leases expire by its own clock.

use std::collections::BTreeMap;
use std::time::Duration;

use transload_plan::ids::{AgentId, Incarnation};

use crate::action::Action;
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::event::Notify;
use crate::ids::NoticeId;
use crate::message::{Message, Notice, NoticeKind};
use crate::outcome::NoticeOutcome;
use crate::peers::Peers;
use crate::refusal::Refusal;
use crate::ticket::{RankAddress, Ticket};

/// A notice that some agent has not answered. Memory: the ticket, and an address for each agent.
#[derive(Debug)]
pub(crate) struct Offered {
    ticket: Ticket,
    says: NoticeKind,
    incarnation: Incarnation,
    waiting: BTreeMap<AgentId, RankAddress>,
    outcome: NoticeOutcome,
    dials: bool,
    reported: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Notices {
    offered: BTreeMap<NoticeId, Offered>,
}

impl Notices {
    pub(crate) fn len(&self) -> usize {
        self.offered.len()
    }

    pub(crate) fn want(&self, agent: &AgentId) -> bool {
        let mut offered = self.offered.values();
        offered.any(|notice| notice.waiting.contains_key(agent))
    }

    /// Returns the address at which to dial an agent, if a notice wants that.
    pub(crate) fn dials(&self, agent: &AgentId) -> Option<&RankAddress> {
        let mut dialling = self.offered.values().filter(|notice| notice.dials);
        dialling.find_map(|notice| notice.waiting.get(agent))
    }

    /// Sends a notice to all agents of a ticket except this one, for which the caller carries it out.
    pub(crate) fn offer<D: KnownDeployments>(
        &mut self,
        cx: &mut Context<D>,
        peers: &mut Peers,
        notify: Notify,
    ) -> NoticeId {
        let Notify { claims, dials, .. } = notify;
        let id = NoticeId(cx.next_number());
        let life = claims.incarnation;
        let ranks = claims.ranks.into_iter();
        let waiting: BTreeMap<_, _> = ranks.map(|a| (a.agent.clone(), a)).collect();
        let agents: Vec<_> = waiting.values().cloned().collect();
        let notice = Offered {
            ticket: notify.ticket,
            says: notify.says,
            incarnation: life,
            outcome: NoticeOutcome { heard: (0, waiting.len()), left: None, refusal: None },
            waiting,
            dials,
            reported: notify.reported,
        };
        if self.offered.len() >= cx.options.notices
            && let Some(&oldest) = self.offered.keys().next()
        {
            self.over(cx, oldest);
        }
        self.offered.insert(id, notice);
        cx.after(cx.options.notice_wait, Timer::Notice(id));
        for address in agents {
            if address.agent == cx.me.agent {
                continue;
            }
            if dials {
                peers.leave_past_life(cx, &address, life, cx.now);
                peers.want(cx, &address);
            }
            self.send(cx, peers, id, &address.agent);
        }
        id
    }

    pub(crate) fn agent_up<D: KnownDeployments>(&mut self, cx: &mut Context<D>, peers: &Peers, agent: &AgentId) {
        let offered = self.offered.iter();
        let waiting = offered.filter(|(_, notice)| notice.waiting.contains_key(agent));
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.send(cx, peers, id, agent);
        }
    }

    fn send<D: KnownDeployments>(&mut self, cx: &mut Context<D>, peers: &Peers, id: NoticeId, agent: &AgentId) {
        let Some(conn) = peers.connection(agent) else {
            return;
        };
        let incarnation = peers.peer(conn).map(|peer| peer.holder.incarnation);
        let Some(notice) = self.offered.get(&id) else {
            return;
        };
        if incarnation != Some(notice.incarnation) {
            // The life that the ticket means is over, and its leases have ended with it.
            self.heard(cx, id, agent, None);
            return;
        }
        let message = Notice { id: id.0, ticket: notice.ticket.clone(), says: notice.says.clone() };
        cx.send(conn, Message::Notice(message));
    }

    /// Gives up on an agent that this one can never talk to.
    pub(crate) fn agent_misfits<D: KnownDeployments>(&mut self, cx: &mut Context<D>, agent: &AgentId) {
        for id in self.offered.keys().copied().collect::<Vec<_>>() {
            self.heard(cx, id, agent, None);
        }
    }

    /// Records an agent's answer to a notice. `None` means that the agent no longer has the leases.
    pub(crate) fn heard<D: KnownDeployments>(
        &mut self,
        cx: &mut Context<D>,
        id: NoticeId,
        agent: &AgentId,
        outcome: Option<Result<u64, Refusal>>,
    ) {
        let Some(notice) = self.offered.get_mut(&id) else {
            return;
        };
        if notice.waiting.remove(agent).is_none() {
            return;
        }
        let so_far = &mut notice.outcome;
        match outcome {
            None => {}
            Some(Ok(left)) => {
                let left = Duration::from_millis(left);
                so_far.heard.0 += 1;
                so_far.left = Some(so_far.left.map_or(left, |known| known.min(left)));
            }
            Some(Err(refusal)) => so_far.refusal = Some(refusal),
        }
        if notice.waiting.is_empty() {
            self.over(cx, id);
        }
    }

    /// Ends a notice, which every agent has answered or which has waited long enough.
    pub(crate) fn over<D: KnownDeployments>(&mut self, cx: &mut Context<D>, id: NoticeId) {
        cx.timers.clear(&Timer::Notice(id));
        if let Some(notice) = self.offered.remove(&id)
            && notice.reported
        {
            cx.act(Action::NoticeDone(id, notice.outcome));
        }
    }
}
