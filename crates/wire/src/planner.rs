//! The machine's interface to plans and memory.

use std::collections::{BTreeMap, BTreeSet};

use transload_plan::Request;
use transload_plan::ids::{DeploymentDigest, PlanDigest, Rank};

use crate::refusal::Difference;

/// Knows the deployments of peers.
///
/// The machine calls it directly, so each call should take microseconds. Compiling plans takes longer, and is requested
/// with [`Action::Compile`](crate::Action::Compile).
pub trait Planner {
    /// The type of blocks that leases and jobs own. The machine only passes them on.
    type Blocks: std::fmt::Debug;

    /// The type of compiled plans. The machine only passes them on.
    type Plan: std::fmt::Debug;

    /// Returns the number of ranks of a deployment, if it is known from [`meet`](Self::meet).
    fn ranks(&self, deployment: &DeploymentDigest) -> Option<u32>;

    /// Adds a peer's canonical document, whose digest has been checked. Returns the number of its ranks, or the first
    /// field in which the deployment cannot be bridged to this agent's own.
    fn meet(&mut self, deployment: DeploymentDigest, document: &[u8]) -> Result<u32, Difference>;

    /// Returns the groups that this agent or the deployment has alone, if it is known from [`meet`](Self::meet).
    fn unpaired(&self, _deployment: &DeploymentDigest) -> Unpaired {
        Unpaired::default()
    }

    /// Counts a connection to the deployment, which stays known until [`release`](Self::release) was called as often.
    fn hold(&mut self, deployment: &DeploymentDigest);

    /// Counts the end of a connection. A deployment without connections may be forgotten.
    fn release(&mut self, deployment: &DeploymentDigest);
}

/// The names of groups of drafts that one of two agents has alone, so that nothing of them moves between the two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpaired {
    /// The groups of this agent.
    pub ours: Vec<String>,
    /// The groups of the peer.
    pub theirs: Vec<String>,
}

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
