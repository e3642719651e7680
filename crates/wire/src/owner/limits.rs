//! Limits of what peers may have in progress here at their own request.

use transload_plan::ids::AgentId;

use super::Owner;
use super::push::InvitedPush;
use crate::context::Context;
use crate::ground::Ground;
use crate::ids::ConnId;
use crate::news::Side;
use crate::planner::Planner;
use crate::refusal::{Refusal, Text, room};

impl<P: Planner> Owner<P> {
    /// Checks that the agent and its service may have one more request in progress.
    /// A peer chooses its instance name itself, so every limit on agents must also limit their service.
    pub(super) fn check_room(&self, g: &Ground<'_, P>, conn: ConnId) -> Result<(), Refusal> {
        let agent = g.peers.agent(conn).ok_or(Refusal::WrongPeer)?;
        let of_agent = |by: &AgentId| by == agent;
        let of_service = |by: &AgentId| by.service() == agent.service();
        let options = &g.cx.options;
        room(options.transfers_per_agent, self.asked_by(g, of_agent))?;
        room(options.transfers_per_service, self.asked_by(g, of_service))
    }

    fn asked_by(&self, g: &Ground<'_, P>, its: impl Fn(&AgentId) -> bool) -> usize {
        let queued = self.queued.values();
        let queued = queued.filter(|queued| g.peers.agent(queued.conn).is_some_and(&its));
        self.places(g, &its).count() + queued.count() + self.pending.asks_for_plans(its)
    }

    /// Returns the places of each transfer and invited push that such agents have asked for.
    fn places<'a>(&'a self, g: &'a Ground<'_, P>, its: &'a dyn Fn(&AgentId) -> bool) -> impl Iterator<Item = u64> {
        let asked = g.flows.all().filter(|t| matches!(t.side, Side::Lease(_)));
        let asked = asked.map(|t| (&t.flow.agent, t.places));
        let pushes = self.pushes.values().map(|push| (&push.by, push.places));
        let all = asked.chain(pushes);
        all.filter_map(move |(by, places)| its(by).then_some(places))
    }

    /// Checks that the agent and its service may have that many more places bound.
    pub(super) fn check_places(&self, g: &Ground<'_, P>, agent: &AgentId, places: u64) -> Result<(), Refusal> {
        check_places_of_one(g.cx, places).map_err(|why| Refusal::Unplannable { why })?;
        let room = |limit: u64, its: &dyn Fn(&AgentId) -> bool| {
            let taken: u64 = self.places(g, its).sum();
            match taken > 0 && taken.saturating_add(places) > limit {
                true => Err(Refusal::busy(limit)),
                false => Ok(()),
            }
        };
        room(g.cx.options.places_per_agent, &|by| by == agent)?;
        let of_service = |by: &AgentId| by.service() == agent.service();
        room(g.cx.options.places_per_service, &of_service)
    }

    /// Checks that the agents of one service may have one more invited push, and that this agent may have one more job.
    pub(super) fn check_pushes(&self, cx: &Context<P>, agent: &AgentId) -> Result<(), Refusal> {
        room(cx.options.jobs, cx.jobs.count())?;
        let of_service = |push: &&InvitedPush| push.by.service() == agent.service();
        let invited = self.pushes.values().filter(of_service).count();
        let most = cx.options.invited_per_service;
        room(most.min(cx.options.jobs.div_ceil(2)), invited)
    }
}

/// Checks that one transfer may bind that many places, at whosever request.
pub(crate) fn check_places_of_one<P: Planner>(cx: &Context<P>, places: u64) -> Result<(), Text> {
    let most = cx.options.places_per_service;
    match places <= most {
        true => Ok(()),
        false => Err(format!(
            "binding it would take {places} places, more than {most}: ask for fewer tokens at a time, or have larger blocks"
        )
        .into()),
    }
}
