//! The plans in use. Each is compiled once, outside of the machine, and shared by everything that needs it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use transload_plan::Request;
use transload_plan::ids::{DeploymentDigest, PlanDigest, Rank, ServiceName};

/// Identifies a plan, which covers all local ranks and a peer's deployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanAsk {
    /// The peer's deployment.
    pub peer: DeploymentDigest,
    /// Whether bytes leave the local ranks; otherwise they reach them.
    pub local_is_source: bool,
    /// The tokens that move, and their order.
    pub request: Request,
}

/// A compiled plan: what the machine needs to know about it, and the plan itself.
#[derive(Debug)]
pub struct Planned<L> {
    /// The routes of each local rank that have bytes to move.
    pub routes: BTreeMap<Rank, Vec<Route>>,
    /// The number of its slices, about half a KiB each.
    pub slices: u64,
    /// The plan, for the agent.
    pub plan: L,
}

impl<L> Planned<L> {
    /// Returns the peer's ranks that a local rank has routes with.
    pub fn peers_of(&self, rank: Rank) -> BTreeSet<Rank> {
        self.of_rank(rank).iter().map(|route| route.peer_rank).collect()
    }

    /// Returns the most places that binding all routes of a local rank takes.
    pub(crate) fn places_of(&self, rank: Rank) -> u64 {
        let places = self.of_rank(rank).iter().map(|route| route.places);
        places.fold(0, u64::saturating_add)
    }

    /// Returns the routes of a local rank.
    pub fn of_rank(&self, rank: Rank) -> &[Route] {
        self.routes.get(&rank).map_or(&[], Vec::as_slice)
    }
}

/// The part of a plan between a local rank and a rank of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer's rank.
    pub peer_rank: Rank,
    /// The number of bytes.
    pub bytes: u64,
    /// The digest, on which both sides must agree.
    pub digest: PlanDigest,
    /// The most places that binding it to memory takes.
    pub places: u64,
}

/// The most plans that are compiled at a time for the agents of one service, which choose what to ask for.
pub(crate) const MOST_COMPILING: usize = 256;

/// The number of remembered plans at which unused ones are removed.
const SWEEP_AT: usize = 64;

#[derive(Debug)]
pub(crate) struct Plans<L> {
    /// Plans that are being compiled, each with the service that asked for it. `None` stands for this agent.
    compiling: HashMap<PlanAsk, Option<ServiceName>>,
    /// Compiled plans. They are dropped when nothing uses them any more.
    compiled: HashMap<PlanAsk, Weak<Planned<L>>>,
    sweep_at: usize,
}

impl<L> Default for Plans<L> {
    fn default() -> Self {
        Self { compiling: HashMap::new(), compiled: HashMap::new(), sweep_at: SWEEP_AT }
    }
}

impl<L> Plans<L> {
    pub(crate) fn get(&self, ask: &PlanAsk) -> Option<Arc<Planned<L>>> {
        self.compiled.get(ask).and_then(Weak::upgrade)
    }

    pub(crate) fn knows(&self, ask: &PlanAsk) -> bool {
        self.compiling.contains_key(ask) || self.get(ask).is_some()
    }

    pub(crate) fn compiling_for(&self, service: &ServiceName) -> usize {
        let services = self.compiling.values().flatten();
        services.filter(|of| *of == service).count()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let mut plans = self.compiled.values();
        self.compiling.is_empty() && plans.all(|plan| plan.strong_count() == 0)
    }

    pub(crate) fn compile(&mut self, ask: PlanAsk, service: Option<ServiceName>) {
        self.compiling.insert(ask, service);
    }

    /// Records the result of compiling; `None` is a failure.
    pub(crate) fn compiled(&mut self, ask: &PlanAsk, plan: Option<&Arc<Planned<L>>>) {
        self.compiling.remove(ask);
        let Some(plan) = plan else {
            return;
        };
        self.compiled.insert(ask.clone(), Arc::downgrade(plan));
        if self.compiled.len() >= self.sweep_at {
            self.compiled.retain(|_, plan| plan.strong_count() > 0);
            self.sweep_at = SWEEP_AT.max(2 * self.compiled.len());
        }
    }
}
