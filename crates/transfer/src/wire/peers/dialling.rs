//! Dialling: who is connected to, when, and how often it is tried.

use super::{Peers, Session};
use crate::ids::{AgentId, Incarnation};
use crate::moment::Moment;
use crate::ticket::RankAddress;
use crate::wire::{Action, CloseReason, Context, News, Planner, Text, Timer};

/// Why there is no connection to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoConnection {
    /// The last one that was up is lost.
    Lost,
    /// Nobody has answered an attempt in time. It is the time that counts then, and not how many attempts it holds.
    Unanswered,
    /// No process is at the port.
    Closed,
    /// An attempt has failed otherwise.
    Failed,
}

/// Where an agent is, and what has come of dialling it.
#[derive(Debug)]
pub(super) struct Dial {
    address: RankAddress,
    /// Whether an answer to [`Action::Connect`] is due.
    pub(super) asked: bool,
    /// Whether the last attempt was made [in a hurry](Peers::hurry). It has not failed for the jobs of before: the timer of the next
    /// attempt goes on.
    pub(super) hurried: bool,
    /// Where it was dialled last, or is now. The answer that is due says nothing of another address.
    pub(super) tried: Option<RankAddress>,
    pub(super) failures: u32,
    /// Whether jobs that needed the agent have failed for it. Those that begin after that have had no patience yet.
    pub(super) given_up: bool,
    /// Whether it was connected, and the connection is lost. It is gone for good, if its port is closed then.
    lost: bool,
    /// Since when it is dialled, or was found not to be connected any more.
    since: Moment,
    /// Since when the agent has refused us as too many. It is patience that helps then, and not another attempt.
    pub(super) crowded: Option<Moment>,
}

impl Dial {
    /// One that is about to begin.
    fn to(address: &RankAddress, now: Moment) -> Self {
        Self {
            address: address.clone(),
            asked: false,
            hurried: false,
            tried: None,
            failures: 0,
            given_up: false,
            lost: false,
            since: now,
            crowded: None,
        }
    }

    /// Forgets failures, and counts time from now on. An answer that is due stays due.
    fn begin_anew(&mut self, address: &RankAddress, now: Moment) {
        *self = Self {
            asked: self.asked,
            tried: self.tried.take(),
            ..Self::to(address, now)
        };
    }

    /// Tries it now.
    fn attempt(&mut self, cx: &mut Context<impl Planner>) {
        self.asked = true;
        self.tried = Some(self.address.clone());
        cx.act(Action::Connect(self.address.clone()));
    }

    /// Whether the agent has been found crowded, and not yet for as long as a greeting may take.
    pub(super) fn has_patience(&self, cx: &Context<impl Planner>) -> bool {
        let wait = cx.options.hello_wait;
        self.crowded.is_some_and(|since| cx.now.since(since) < wait)
    }
}

impl Peers {
    /// Hangs up on lives of an agent that a ticket of a later one shows to be over, which may take the
    /// transport long to notice, and dials that one, where the ticket says it is.
    ///
    /// A connection that has come up at `suspect` or after is not suspected: who has just answered there
    /// lives, and is not whom the ticket means.
    pub(crate) fn leave_past_life(
        &mut self,
        cx: &mut Context<impl Planner>,
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
        // What led there has nothing to do with where the agent is now.
        if let Some(known) = self.agents.get_mut(&address.agent) {
            known.dial = Some(Dial::to(address, cx.now));
        }
        cx.timers.clear(&Timer::Dial(address.agent.clone()));
        for conn in past {
            self.close(cx, conn, CloseReason::Replaced);
        }
        self.dial_due(cx, &address.agent);
    }

    /// Sees to it that a connection will be there.
    pub(crate) fn want(&mut self, cx: &mut Context<impl Planner>, address: &RankAddress) {
        let known = self.agents.entry(address.agent.clone()).or_default();
        if !known.up.is_empty() {
            return;
        }
        if let Some(dial) = &mut known.dial {
            // One that has restarted elsewhere is not to be found where it was.
            if dial.address != *address {
                dial.begin_anew(address, cx.now);
            }
            return;
        }
        known.dial = Some(Dial::to(address, cx.now));
        self.dial_due(cx, &address.agent);
    }

    /// Dials the agent at once for something new that needs it at this address, and not after the pause that an old failure has
    /// begun. That changes nothing for earlier jobs: neither the time for which they wait, nor the attempts that they have.
    pub(crate) fn hurry(&mut self, cx: &mut Context<impl Planner>, address: &RankAddress) {
        let agent = &address.agent;
        let known = self.agents.get_mut(agent);
        let known = known.filter(|known| known.up.is_empty());
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return;
        };
        // Also where an attempt is under way: its failure is the first that the new job meets.
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

    /// It is time for the next attempt: a hurried one that is still under way is that.
    pub(crate) fn dial_due(&mut self, cx: &mut Context<impl Planner>, agent: &AgentId) {
        let known = self.agents.get_mut(agent);
        let Some(dial) = known.and_then(|known| known.dial.as_mut()) else {
            return;
        };
        dial.hurried = false;
        if !dial.asked {
            dial.attempt(cx);
        }
    }

    /// No connection to the agent can be had, or the last one is lost.
    pub(crate) fn dial_failed(
        &mut self,
        cx: &mut Context<impl Planner>,
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
        let mut late = None;
        // The peer came to us where there is none.
        if let Some(dial) = dial {
            // It is dialled anew already.
            if was_up && dial.asked {
                return;
            }
            dial.asked = false;
            let failures = match cause {
                // It begins anew, as it does where the answer is of another address.
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
            let enough =
                dial.failures >= cx.options.attempts || cx.now.since(dial.since) >= patience;
            let failed = enough && !dial.has_patience(cx);
            dial.given_up |= failed;
            late = failed.then_some(why);
        }
        cx.tell(News::Away(agent, late));
    }

    /// Has an agent that is away dialled after a pause, where somebody needs it and knows its `address`; forgets it
    /// otherwise.
    pub(crate) fn dial_again(
        &mut self,
        cx: &mut Context<impl Planner>,
        agent: &AgentId,
        address: Option<RankAddress>,
    ) {
        let Some(known) = self.agents.get(agent).filter(|known| known.up.is_empty()) else {
            return;
        };
        let timer = Timer::Dial(agent.clone());
        match (&known.dial, address) {
            (Some(dial), _) if dial.asked => {}
            // The pause that was begun before it is not over.
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
