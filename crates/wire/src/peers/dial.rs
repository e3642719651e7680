//! What has come of dialling an agent.

use crate::action::Action;
use crate::context::Context;
use crate::moment::Moment;
use crate::planner::Planner;
use crate::ticket::RankAddress;

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
    pub(super) address: RankAddress,
    /// Whether an answer to [`Action::Connect`] is due.
    pub(super) asked: bool,
    /// Whether the last attempt was made [in a hurry](super::Peers::hurry). It has not failed for the jobs of before: the
    /// timer of the next attempt goes on.
    pub(super) hurried: bool,
    /// Where it was dialled last, or is now. The answer that is due says nothing of another address.
    pub(super) tried: Option<RankAddress>,
    pub(super) failures: u32,
    /// Whether jobs that needed the agent have failed for it. Those that begin after that have had no patience yet.
    pub(super) given_up: bool,
    /// Whether it was connected, and the connection is lost. It is gone for good, if its port is closed then.
    pub(super) lost: bool,
    /// Since when it is dialled, or was found not to be connected any more.
    pub(super) since: Moment,
    /// Since when the agent has refused us as too many. It is patience that helps then, and not another attempt.
    pub(super) crowded: Option<Moment>,
}

impl Dial {
    /// One that is about to begin.
    pub(super) fn to(address: &RankAddress, now: Moment) -> Self {
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
    pub(super) fn begin_anew(&mut self, address: &RankAddress, now: Moment) {
        *self = Self { asked: self.asked, tried: self.tried.take(), ..Self::to(address, now) };
    }

    /// Tries it now.
    pub(super) fn attempt(&mut self, cx: &mut Context<impl Planner>) {
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
