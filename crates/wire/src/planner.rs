//! What the machine asks of plans and memory, without knowing either.

use std::collections::{BTreeMap, BTreeSet};

use transload_plan::Request;
use transload_plan::ids::{DeploymentDigest, PlanDigest, Rank};

use crate::refusal::Difference;

/// Knows the deployments of peers.
///
/// Called from within the machine: answers should take microseconds. Plans take longer, and are asked for by
/// [`Action::Compile`](crate::Action::Compile).
pub trait Planner {
    /// The blocks that leases and jobs carry, whatever the agent makes of them.
    type Blocks: std::fmt::Debug;

    /// A compiled plan, whatever the agent makes of it.
    type Plan: std::fmt::Debug;

    /// How many ranks the deployment has, if it is known from [`meet`](Self::meet).
    fn ranks(&self, deployment: &DeploymentDigest) -> Option<u32>;

    /// Takes a peer's canonical document, whose digest has been checked. Tells how many ranks it
    /// has; or the first field in which it cannot be bridged to our own.
    fn meet(&mut self, deployment: DeploymentDigest, document: &[u8]) -> Result<u32, Difference>;

    /// A connection to the deployment is there: it stays known until [`release`](Self::release) was
    /// called as often.
    fn hold(&mut self, deployment: &DeploymentDigest);

    /// A connection that was held is gone. What is held no more may be forgotten.
    fn release(&mut self, deployment: &DeploymentDigest);
}

/// Which plan is asked for: of all local ranks with a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanAsk {
    /// The peer's deployment.
    pub peer: DeploymentDigest,
    /// Whether bytes leave the local ranks, or reach them.
    pub local_is_source: bool,
    /// Which tokens, and in which order.
    pub request: Request,
}

/// A plan that is compiled: what the machine has to know of it, and what the agent runs by.
#[derive(Debug)]
pub struct Planned<L> {
    /// The routes of each local rank that have bytes to move.
    pub routes: BTreeMap<Rank, Vec<Route>>,
    /// How large it is: half a KiB or so for each of its slices.
    pub slices: u64,
    /// The plan itself.
    pub plan: L,
}

impl<L> Planned<L> {
    /// The ranks of the peer that one local rank has routes with.
    pub fn peers_of(&self, rank: Rank) -> BTreeSet<Rank> {
        self.of_rank(rank).iter().map(|route| route.peer_rank).collect()
    }

    /// The most places that binding all routes of one local rank takes.
    pub(crate) fn places_of(&self, rank: Rank) -> u64 {
        let places = self.of_rank(rank).iter().map(|route| route.places);
        places.fold(0, u64::saturating_add)
    }

    /// The routes of one local rank.
    pub fn of_rank(&self, rank: Rank) -> &[Route] {
        self.routes.get(&rank).map_or(&[], Vec::as_slice)
    }
}

/// What moves between a local rank and one of the peer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer's rank.
    pub peer_rank: Rank,
    /// How many bytes.
    pub bytes: u64,
    /// What both sides must have compiled alike.
    pub digest: PlanDigest,
    /// The most places that binding it to memory takes.
    pub places: u64,
}
