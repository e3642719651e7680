//! The machine's interface to the deployments of peers.

use transload_plan::ids::DeploymentDigest;

use crate::refusal::Difference;

/// Knows the deployments of peers.
///
/// The machine calls it directly, so each call should take microseconds. Compiling plans takes longer, and is requested
/// with [`Action::Compile`](crate::Action::Compile).
pub trait KnownDeployments {
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
