//! What the machine asks of plans and memory, without knowing either.

use super::refusal::Difference;
use crate::ids::{DeploymentDigest, PlanDigest, Rank};
use crate::plan::Request;

/// Compiles plans against deployments of peers.
///
/// Called from within the machine: answers should take microseconds, so keep what was compiled.
pub trait Planner {
    /// The blocks that leases and jobs carry, whatever the agent makes of them.
    type Blocks: std::fmt::Debug;

    /// How many ranks the deployment has, if it is known from [`meet`](Self::meet).
    fn ranks(&self, deployment: &DeploymentDigest) -> Option<u32>;

    /// Takes a peer's canonical document, whose digest has been checked. Tells how many ranks it
    /// has; or the first field in which it cannot be bridged to our own.
    fn meet(&mut self, deployment: DeploymentDigest, document: &[u8]) -> Result<u32, Difference>;

    /// A connection to the deployment is there: it stays known until [`release`](Self::release) was
    /// called as often.
    fn hold(&mut self, deployment: &DeploymentDigest);

    /// A connection that was held is gone. What nobody holds may be forgotten.
    fn release(&mut self, deployment: &DeploymentDigest);

    /// All routes of one local rank with a known deployment.
    fn routes(&mut self, ask: &RouteAsk) -> Result<Vec<Route>, String>;
}

/// Which routes are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAsk {
    /// The peer's deployment.
    pub peer: DeploymentDigest,
    /// The local rank.
    pub rank: Rank,
    /// Whether bytes leave the local rank, or reach it.
    pub local_is_source: bool,
    /// Which tokens, and in which order.
    pub request: Request,
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
