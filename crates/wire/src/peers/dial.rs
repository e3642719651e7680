//! The state of dialling an agent.

use crate::action::Action;
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::moment::Moment;
use crate::ticket::RankAddress;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoConnection {
    /// The last connection that was up is lost.
    Lost,
    /// An attempt got no answer in time. Then the elapsed time decides when to give up, and not the number of attempts.
    Unanswered,
    Closed,
    Failed,
}

#[derive(Debug)]
pub(super) struct Dial {
    pub(super) address: RankAddress,
    /// Whether an answer to [`Action::Connect`] is due.
    pub(super) asked: bool,
    /// Whether the last attempt was made [in a hurry](super::Peers::hurry). Its failure does not count for earlier
    /// jobs, and the timer of the next regular attempt keeps running.
    pub(super) hurried: bool,
    /// The address of the last attempt, or of the current one. Its outcome says nothing about another address.
    pub(super) tried: Option<RankAddress>,
    pub(super) failures: u32,
    /// Whether the jobs that needed the agent have failed. Later jobs get a new time limit.
    pub(super) given_up: bool,
    /// Whether a connection to it was up and was lost. If its port is closed then, it is gone for good.
    pub(super) lost: bool,
    /// The time since when it is dialled, or was found to be disconnected.
    pub(super) since: Moment,
    /// The time since when the agent refuses this one because of too many connections. Then waiting helps, not another
    /// attempt.
    pub(super) crowded: Option<Moment>,
}

impl Dial {
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

    /// Resets failures and time limit. A due answer stays due.
    pub(super) fn begin_anew(&mut self, address: &RankAddress, now: Moment) {
        *self = Self { asked: self.asked, tried: self.tried.take(), ..Self::to(address, now) };
    }

    pub(super) fn attempt(&mut self, cx: &mut Context<impl KnownDeployments>) {
        self.asked = true;
        self.tried = Some(self.address.clone());
        cx.act(Action::Connect(self.address.clone()));
    }

    /// Returns whether the agent is crowded, but not yet for as long as a greeting may take.
    pub(super) fn has_patience(&self, cx: &Context<impl KnownDeployments>) -> bool {
        let wait = cx.options.hello_wait;
        self.crowded.is_some_and(|since| cx.now.since(since) < wait)
    }
}
