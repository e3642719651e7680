//! Dialling: which agents are dialled, when, and how often.

use transload_plan::ids::{AgentId, Incarnation};

use super::dial::{Dial, NoConnection};
use super::{Peers, Session};
use crate::action::CloseReason;
use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::event::Event;
use crate::moment::Moment;
use crate::refusal::Text;
use crate::ticket::RankAddress;

impl Peers {
    /// Closes connections to past lives of an agent, which a ticket of a later life proves to be over (the transport
    /// may take long to notice), and dials the later life at the ticket's address.
    /// Connections that came up at `suspect` or later are kept: a process that answered just now is alive, and is not
    /// the life that the ticket means.
    pub(crate) fn leave_past_life(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        address: &RankAddress,
        ticket: Incarnation,
        suspect: Moment,
    ) {
        let is_past = |session: &Session| {
            let peer = session.peer.as_ref();
            session.agent.as_ref() == Some(&address.agent)
                && session.up_since.is_some_and(|since| since < suspect)
                && peer.is_some_and(|peer| peer.holder.incarnation < ticket)
        };
        let past = self.sessions.iter();
        let past = past.filter(|(_, session)| is_past(session));
        let past: Vec<_> = past.map(|(conn, _)| *conn).collect();
        if past.is_empty() {
            return;
        }
        // Earlier attempts say nothing about the agent's new address.
        if let Some(known) = self.agents.get_mut(&address.agent) {
            known.dial = Some(Dial::to(address, cx.now));
        }
        cx.timers.clear(&Timer::Dial(address.agent.clone()));
        for conn in past {
            self.close(cx, conn, CloseReason::Replaced);
        }
        self.dial_due(cx, &address.agent);
    }

    /// Requests a connection, unless one is up or on its way.
    pub(crate) fn want(&mut self, cx: &mut Context<impl KnownDeployments>, address: &RankAddress) {
        let known = self.agents.entry(address.agent.clone()).or_default();
        if !known.up.is_empty() {
            return;
        }
        if let Some(dial) = &mut known.dial {
            // An agent that has restarted elsewhere is dialled there.
            if dial.address != *address {
                dial.begin_anew(address, cx.now);
            }
            return;
        }
        known.dial = Some(Dial::to(address, cx.now));
        self.dial_due(cx, &address.agent);
    }

    /// Dials the agent at once for a new job, instead of after the pause of an earlier failure. Earlier jobs are not
    /// affected: neither their time limits nor their number of attempts.
    pub(crate) fn hurry(&mut self, cx: &mut Context<impl KnownDeployments>, address: &RankAddress) {
        let agent = &address.agent;
        let known = self.agents.get_mut(agent);
        let known = known.filter(|known| known.up.is_empty());
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return;
        };
        // This resets a current attempt as well: its failure is the first one for the new job.
        let anew = dial.given_up || dial.address != *address;
        if anew {
            dial.begin_anew(address, cx.now);
            cx.timers.clear(&Timer::Dial(agent.clone()));
        }
        if !dial.asked {
            dial.hurried = !anew;
            dial.attempt(cx);
        }
    }

    /// Makes the next regular attempt. A hurried attempt in progress counts as that.
    pub(crate) fn dial_due(&mut self, cx: &mut Context<impl KnownDeployments>, agent: &AgentId) {
        let known = self.agents.get_mut(agent);
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return;
        };
        dial.hurried = false;
        if !dial.asked {
            dial.attempt(cx);
        }
    }

    /// Handles an attempt that failed, or the loss of the last connection.
    pub(crate) fn dial_failed(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        agent: AgentId,
        cause: NoConnection,
        why: Text,
    ) {
        let Some(known) = self.agents.get_mut(&agent) else {
            return;
        };
        let dial = known.dial.as_mut();
        if !known.up.is_empty() {
            if let Some(dial) = dial {
                dial.crowded = None;
            }
            return;
        }
        let was_up = cause == NoConnection::Lost;
        let mut reason = None;
        // Without `dial`, the peer had connected by itself.
        if let Some(dial) = dial {
            // A new attempt has begun already.
            if was_up && dial.asked {
                return;
            }
            dial.asked = false;
            let failures = match cause {
                // Losing a connection starts the count anew, as does an outcome that is about an old address.
                NoConnection::Lost => {
                    dial.lost = true;
                    dial.since = cx.now;
                    0
                }
                _ if dial.tried.as_ref() != Some(&dial.address) => {
                    dial.since = cx.now;
                    0
                }
                NoConnection::Unanswered => 0,
                NoConnection::Closed if dial.lost => cx.options.attempts,
                _ if dial.hurried => 0,
                NoConnection::Closed | NoConnection::Failed => 1,
            };
            dial.failures = dial.failures.saturating_add(failures);
            let patience = cx.options.connect_wait;
            let enough = dial.failures >= cx.options.attempts || cx.now.since(dial.since) >= patience;
            let failed = enough && !dial.has_patience(cx);
            dial.given_up |= failed;
            reason = failed.then_some(why);
        }
        cx.emit(Event::Away(agent, reason));
    }

    /// Dials a disconnected agent again after a pause, if something needs it at a known `address`, or else forgets it.
    pub(crate) fn dial_again(
        &mut self,
        cx: &mut Context<impl KnownDeployments>,
        agent: &AgentId,
        address: Option<RankAddress>,
    ) {
        let Some(known) = self.agents.get(agent).filter(|known| known.up.is_empty()) else {
            return;
        };
        let timer = Timer::Dial(agent.clone());
        match (&known.dial, address) {
            (Some(dial), _) if dial.asked => {}
            // The pause that began before the hurried attempt is not over.
            (Some(dial), Some(_)) if dial.hurried => {}
            (Some(dial), Some(_)) => cx.after(cx.options.pause(dial.failures.max(1)), timer),
            (None, Some(address)) => self.want(cx, &address),
            (_, None) => {
                cx.timers.clear(&timer);
                self.agents.remove(agent);
            }
        }
    }
}
