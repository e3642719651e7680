//! The agents that a pull has invited to push, and their progress.

use std::collections::{BTreeMap, BTreeSet};

use transload_plan::ids::AgentId;

use crate::context::{Context, Timer};
use crate::deployments::KnownDeployments;
use crate::ids::{ConnId, JobId};
use crate::lease::LeaseKey;
use crate::outcome::RouteReport;
use crate::ticket::Claims;
use crate::waiting::Awaited;

#[derive(Debug)]
pub(super) struct Invitees {
    /// Agents of the ticket that have not answered whether they push.
    pub(super) unheard: BTreeMap<AgentId, Unheard>,
    pub(super) open: BTreeSet<LeaseKey>,
    pub(super) routes: Vec<RouteReport>,
}

#[derive(Debug, Default)]
pub(super) struct Unheard {
    pub(super) on: Option<ConnId>,
    pub(super) busy: u32,
    /// Whether the next invitation waits for a pause, because the agent was busy.
    pub(super) pausing: bool,
}

impl Invitees {
    pub(super) fn new(open: BTreeSet<LeaseKey>, claims: &Claims) -> Self {
        let agents = claims.ranks.iter().map(|address| address.agent.clone());
        Self { unheard: agents.map(|agent| (agent, Unheard::default())).collect(), open, routes: Vec::new() }
    }

    /// Returns the first agent that has not answered, else the first of which nothing has landed, else the first; and
    /// what is awaited of it.
    pub(super) fn first_unheard<'a>(&self, claims: &'a Claims) -> Option<(&'a AgentId, Awaited)> {
        let mut ranks = claims.ranks.iter();
        let unheard = ranks.find_map(|rank| Some((rank, self.unheard.get(&rank.agent)?)));
        match unheard {
            Some((rank, said)) if said.pausing => Some((&rank.agent, Awaited::Turn)),
            Some((rank, _)) => Some((&rank.agent, Awaited::Answer)),
            None => {
                let landed = |at: u32| self.routes.iter().any(|route| route.peer_rank.0 == at);
                let missing = (0..).zip(&claims.ranks).find(|(at, _)| !landed(*at));
                let missing = missing.map(|(_, rank)| rank).or(claims.ranks.first());
                Some((&missing?.agent, Awaited::Push))
            }
        }
    }

    /// Returns the routes that have landed, and stops inviting agents.
    pub(super) fn report<D: KnownDeployments>(self, cx: &mut Context<D>, id: JobId) -> Vec<RouteReport> {
        for agent in self.unheard.into_keys() {
            cx.timers.clear(&Timer::Invite(id, agent));
        }
        self.routes
    }
}
