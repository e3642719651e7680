//! The deployments of peers, and plans with them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use transload_layout::Deployment;
use transload_layout::document::Document;

use super::request::Blocks;
use transload_layout::{Rank, Side};
use transload_plan::ids::DeploymentDigest;
pub(super) use transload_plan::internal::canonical_document as canonical;
use transload_plan::{Plan, pair_groups, unpaired};
use transload_wire as wire;
use transload_wire::{Difference, PlanAsk, Planned, Unpaired};

/// The most deployments that are kept without a connected peer. Each has at most 64 groups and 4,096 ranks.
const MOST_IDLE: usize = 64;

/// This agent's deployment, and those of peers.
#[derive(Debug)]
pub(super) struct Deployments {
    own: Arc<Deployment>,
    peers: HashMap<DeploymentDigest, Met>,
    /// Deployments without connections, the longest idle first.
    idle: VecDeque<DeploymentDigest>,
}

#[derive(Debug)]
struct Met {
    deployment: Arc<Deployment>,
    connections: usize,
}

impl Deployments {
    pub(super) fn new(own: Arc<Deployment>) -> Self {
        Self { own, peers: HashMap::new(), idle: VecDeque::new() }
    }

    pub(super) fn peer(&self, digest: &DeploymentDigest) -> Option<&Arc<Deployment>> {
        self.peers.get(digest).map(|met| &met.deployment)
    }

    /// Keeps a deployment without connections for a while.
    fn idle(&mut self, digest: DeploymentDigest) {
        self.idle.push_back(digest);
        if self.idle.len() > MOST_IDLE
            && let Some(longest) = self.idle.pop_front()
        {
            self.peers.remove(&longest);
        }
    }

    /// Returns a closure that compiles a plan on another thread.
    pub(super) fn compiling(
        &self,
        ask: &PlanAsk,
        ranks: Vec<Rank>,
    ) -> impl FnOnce() -> Result<Planned<Plan>, String> + Send + use<> {
        let (own, peer) = (self.own.clone(), self.peer(&ask.peer).cloned());
        let (request, local_is_source) = (ask.request, ask.local_is_source);
        move || {
            let peer = peer.ok_or("the peer's deployment is not known")?;
            let plan = match local_is_source {
                true => Plan::compile_for(&own, &peer, &request, Side::Source, &ranks),
                false => Plan::compile_for(&peer, &own, &request, Side::Destination, &ranks),
            };
            let plan = plan.map_err(|error| error.to_string())?;
            Ok(Planned { routes: routes(&plan, local_is_source), slices: plan.slices(), plan })
        }
    }
}

/// Describes a plan's routes for the machine.
fn routes(plan: &Plan, local_is_source: bool) -> BTreeMap<Rank, Vec<wire::Route>> {
    let mut routes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for route in plan.routes() {
        let (rank, peer_rank) = match local_is_source {
            true => (route.src_rank, route.dst_rank),
            false => (route.dst_rank, route.src_rank),
        };
        let bytes = plan.route_bytes(route);
        if bytes > 0 {
            routes.entry(rank).or_default().push(wire::Route {
                peer_rank,
                bytes,
                digest: plan.route_digest(route),
                places: plan.most_places(route),
            });
        }
    }
    routes
}

impl wire::KnownDeployments for Deployments {
    type Blocks = Blocks;
    type Plan = Plan;

    fn ranks(&self, deployment: &DeploymentDigest) -> Option<u32> {
        self.peer(deployment).map(|peer| peer.tp() * peer.pp())
    }

    fn meet(&mut self, digest: DeploymentDigest, document: &[u8]) -> Result<u32, Difference> {
        let unreadable = |why: String| Difference {
            field: "document".into(),
            ours: "a deployment document".into(),
            theirs: why.into(),
        };
        let document: Document = postcard::from_bytes(document).map_err(|error| unreadable(error.to_string()))?;
        let peer = Deployment::from_document(document).map_err(|faults| unreadable(faults.to_string()))?;
        pair_groups(&self.own, &peer).map_err(|differs| Difference {
            field: differs.field.into(),
            ours: differs.source_value.into(),
            theirs: differs.destination_value.into(),
        })?;
        let ranks = peer.tp() * peer.pp();
        if self.peer(&digest).is_none() {
            let met = Met { deployment: Arc::new(peer), connections: 0 };
            self.peers.insert(digest, met);
            self.idle(digest);
        }
        Ok(ranks)
    }

    fn unpaired(&self, digest: &DeploymentDigest) -> Unpaired {
        let names = |of: &Deployment, other: &Deployment| unpaired(of, other).map(str::to_owned).collect();
        let peer = self.peer(digest);
        let unpaired = peer.map(|peer| Unpaired { ours: names(&self.own, peer), theirs: names(peer, &self.own) });
        unpaired.unwrap_or_default()
    }

    fn hold(&mut self, digest: &DeploymentDigest) {
        if let Some(met) = self.peers.get_mut(digest) {
            met.connections += 1;
            self.idle.retain(|idle| idle != digest);
        }
    }

    fn release(&mut self, digest: &DeploymentDigest) {
        if let Some(met) = self.peers.get_mut(digest) {
            met.connections -= 1;
            if met.connections == 0 {
                self.idle(*digest);
            }
        }
    }
}

/// Makes a small deployment with that many blocks.
#[cfg(test)]
pub(super) fn deployment(blocks: u32) -> Deployment {
    use transload_layout::{Dtype, Group, Spec};
    let group = Group::builder("attn", "0", Spec::attention(1, 8, Dtype::Bf16));
    let deployment = Deployment::builder().block_size(16).num_blocks(blocks.into()).group(group);
    deployment.build().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use transload_wire::KnownDeployments as _;

    #[test]
    fn a_connected_peer_is_never_forgotten() {
        let mut plans = Deployments::new(Arc::new(deployment(1)));
        let mut meet = |blocks| {
            let document = canonical(&deployment(blocks)).unwrap();
            let digest = DeploymentDigest::of(&document);
            assert_eq!(plans.meet(digest, &document).unwrap(), 1);
            plans.hold(&digest);
            if blocks > 1 {
                plans.release(&digest);
            }
            digest
        };
        let connected = meet(1);
        let first_idle = meet(2);
        let last_idle = (3..100).map(meet).last().unwrap();
        assert_eq!(plans.ranks(&connected), Some(1));
        assert_eq!(plans.ranks(&first_idle), None);
        assert_eq!(plans.ranks(&last_idle), Some(1));
        assert_eq!(plans.peers.len(), MOST_IDLE + 1);
    }
}
