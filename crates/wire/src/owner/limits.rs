//! Limits of what peers may have in progress here at their own request.

use transload_plan::ids::AgentId;

use super::Owner;
use super::push::InvitedPush;
use crate::context::Context;
use crate::deployments::KnownDeployments;
use crate::event::Side;
use crate::ids::ConnId;
use crate::lower::Lower;
use crate::refusal::{Refusal, Text, room};

impl<D: KnownDeployments> Owner<D> {
    /// Checks that the agent and its service may have one more request in progress.
    /// A peer chooses its instance name itself, so every limit on agents must also limit their service.
    pub(super) fn check_room(&self, lower: &Lower<'_, D>, conn: ConnId) -> Result<(), Refusal> {
        let agent = lower.peers.agent(conn).ok_or(Refusal::WrongPeer)?;
        let of_agent = |by: &AgentId| by == agent;
        let of_service = |by: &AgentId| by.service() == agent.service();
        let options = &lower.cx.options;
        room(options.transfers_per_agent, self.asked_by(lower, of_agent))?;
        room(options.transfers_per_service, self.asked_by(lower, of_service))
    }

    fn asked_by(&self, lower: &Lower<'_, D>, its: impl Fn(&AgentId) -> bool) -> usize {
        let queued = self.queued.values();
        let queued = queued.filter(|queued| lower.peers.agent(queued.conn).is_some_and(&its));
        self.places(lower, &its).count() + queued.count() + self.pending.asks_for_plans(its)
    }

    /// Returns the places of each transfer and invited push that such agents have asked for.
    fn places<'a>(&'a self, lower: &'a Lower<'_, D>, its: &'a dyn Fn(&AgentId) -> bool) -> impl Iterator<Item = u64> {
        let asked = lower.flows.all().filter(|t| matches!(t.side, Side::Lease(_)));
        let asked = asked.map(|t| (&t.flow.agent, t.places));
        let pushes = self.pushes.values().map(|push| (&push.by, push.places));
        let all = asked.chain(pushes);
        all.filter_map(move |(by, places)| its(by).then_some(places))
    }

    /// Checks that the agent and its service may have that many more places bound.
    pub(super) fn check_places(&self, lower: &Lower<'_, D>, agent: &AgentId, places: u64) -> Result<(), Refusal> {
        check_places_of_one(lower.cx, places).map_err(|why| Refusal::Unplannable { why })?;
        let room = |limit: u64, its: &dyn Fn(&AgentId) -> bool| {
            let taken: u64 = self.places(lower, its).sum();
            match taken > 0 && taken.saturating_add(places) > limit {
                true => Err(Refusal::busy(limit)),
                false => Ok(()),
            }
        };
        room(lower.cx.options.places_per_agent, &|by| by == agent)?;
        let of_service = |by: &AgentId| by.service() == agent.service();
        room(lower.cx.options.places_per_service, &of_service)
    }

    /// Checks that the agents of one service may have one more invited push, and that this agent may have one more job.
    pub(super) fn check_pushes(&self, cx: &Context<D>, agent: &AgentId) -> Result<(), Refusal> {
        room(cx.options.jobs, cx.jobs.count())?;
        let of_service = |push: &&InvitedPush| push.by.service() == agent.service();
        let invited = self.pushes.values().filter(of_service).count();
        let most = cx.options.invited_per_service;
        room(most.min(cx.options.jobs.div_ceil(2)), invited)
    }
}

/// Checks that one transfer may bind that many places, at whosever request.
pub(crate) fn check_places_of_one<D: KnownDeployments>(cx: &Context<D>, places: u64) -> Result<(), Text> {
    let most = cx.options.places_per_service;
    match places <= most {
        true => Ok(()),
        false => Err(format!(
            "binding it would take {places} places, more than {most}: ask for fewer tokens at a time, or have larger blocks"
        )
        .into()),
    }
}
