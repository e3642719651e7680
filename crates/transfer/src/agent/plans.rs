//! Plans against peers: what the machine asks of the planner, and what transfers run.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use transload_layout::Deployment;
use transload_layout::document::Document;

use crate::ids::DeploymentDigest;
pub(super) use crate::ids::canonical_document as canonical;
use crate::plan::{MAX_SLICES, Plan, Side, pair_groups};
use crate::wire::{self, Difference, Flow, RouteAsk};

/// Most deployments that are kept though no peer of theirs is connected. Each has at most 64 groups and
/// 4,096 ranks.
const MOST_IDLE: usize = 64;

/// Most plans that are kept: enough for the requests that arrive while one is answered.
const MOST_PLANS: usize = 64;

/// Most slices of them together, since a peer's layout decides how many a plan has: as many as one may have.
const MOST_KEPT_SLICES: u64 = MAX_SLICES;

/// Peers' deployments, and the plans with them that were asked for lately.
#[derive(Debug)]
pub(super) struct Plans {
    own: Arc<Deployment>,
    peers: HashMap<DeploymentDigest, Met>,
    /// Those that nobody is connected from, the longest idle first.
    idle: VecDeque<DeploymentDigest>,
    recent: VecDeque<Planned>,
}

/// A plan, and what each of its routes is, which takes a hash of all that it moves.
#[derive(Clone, Debug)]
struct Planned {
    ask: RouteAsk,
    plan: Arc<Plan>,
    routes: Arc<[wire::Route]>,
}

/// A peer's deployment.
#[derive(Debug)]
struct Met {
    deployment: Arc<Deployment>,
    /// How many connections there are to it.
    connections: usize,
}

impl Plans {
    pub(super) fn new(own: Arc<Deployment>) -> Self {
        Self {
            own,
            peers: HashMap::new(),
            idle: VecDeque::new(),
            recent: VecDeque::new(),
        }
    }

    pub(super) fn peer(&self, digest: &DeploymentDigest) -> Option<&Arc<Deployment>> {
        self.peers.get(digest).map(|met| &met.deployment)
    }

    /// Keeps a deployment that nobody is connected from, for a while.
    fn idle(&mut self, digest: DeploymentDigest) {
        self.idle.push_back(digest);
        if self.idle.len() > MOST_IDLE
            && let Some(longest) = self.idle.pop_front()
        {
            self.peers.remove(&longest);
        }
    }

    /// The plan with all routes of one local rank.
    fn plan(&mut self, ask: &RouteAsk) -> Result<Planned, String> {
        if let Some(known) = self.recent.iter().find(|known| known.ask == *ask) {
            return Ok(known.clone());
        }
        let peer = self
            .peer(&ask.peer)
            .ok_or("the peer's deployment is not known")?;
        let plan = match ask.local_is_source {
            true => Plan::compile_for(&self.own, peer, &ask.request, Side::Source, ask.rank),
            false => Plan::compile_for(peer, &self.own, &ask.request, Side::Destination, ask.rank),
        };
        let plan = Arc::new(plan.map_err(|error| error.to_string())?);
        let routes = plan.routes().iter().map(|route| wire::Route {
            peer_rank: match ask.local_is_source {
                true => route.dst_rank,
                false => route.src_rank,
            },
            bytes: plan.route_bytes(route),
            digest: plan.route_digest(route),
            places: plan.most_places(route),
        });
        let planned = Planned {
            ask: ask.clone(),
            routes: routes.filter(|route| route.bytes > 0).collect(),
            plan,
        };
        self.recent.push_back(planned.clone());
        forget_oldest(&mut self.recent, MOST_PLANS, MOST_KEPT_SLICES);
        Ok(planned)
    }

    /// The plan of a transfer.
    pub(super) fn of_flow(
        &mut self,
        flow: &Flow,
        local_is_source: bool,
    ) -> Result<Arc<Plan>, String> {
        self.plan(&RouteAsk {
            peer: flow.peer,
            rank: flow.rank,
            local_is_source,
            request: flow.request,
        })
        .map(|planned| planned.plan)
    }
}

/// Drops the oldest plans until there are no more than so many, with no more than so many slices together.
fn forget_oldest(recent: &mut VecDeque<Planned>, most: usize, most_slices: u64) {
    let mut slices: u64 = recent.iter().map(|known| known.plan.slices()).sum();
    while (recent.len() > most || slices > most_slices)
        && let Some(oldest) = recent.pop_front()
    {
        slices -= oldest.plan.slices();
    }
}

impl wire::Planner for Plans {
    type Blocks = super::Blocks;

    fn ranks(&self, deployment: &DeploymentDigest) -> Option<u32> {
        self.peer(deployment).map(|peer| peer.tp() * peer.pp())
    }

    fn meet(&mut self, digest: DeploymentDigest, document: &[u8]) -> Result<u32, Difference> {
        let unreadable = |why: String| Difference {
            field: "document".into(),
            ours: "a deployment document".into(),
            theirs: why.into(),
        };
        let document: Document =
            postcard::from_bytes(document).map_err(|error| unreadable(error.to_string()))?;
        let peer =
            Deployment::from_document(document).map_err(|faults| unreadable(faults.to_string()))?;
        pair_groups(&self.own, &peer).map_err(|differs| Difference {
            field: differs.field.into(),
            ours: differs.source_value.into(),
            theirs: differs.destination_value.into(),
        })?;
        let ranks = peer.tp() * peer.pp();
        if self.peer(&digest).is_none() {
            let met = Met {
                deployment: Arc::new(peer),
                connections: 0,
            };
            self.peers.insert(digest, met);
            self.idle(digest);
        }
        Ok(ranks)
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

    fn routes(&mut self, ask: &RouteAsk) -> Result<Vec<wire::Route>, String> {
        Ok(self.plan(ask)?.routes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Planner as _;

    fn deployment(blocks: u32) -> Deployment {
        let text = format!(
            r#"{{"schema": "transload.deployment/1", "tp": 1, "block_size": 16, "num_blocks": {blocks},
                "group": [{{"name": "attn", "layers": "0", "spec": [{{"kind": "attention",
                "heads": 1, "head_dim": 8, "dtype": "bf16"}}]}}]}}"#
        );
        let value = serde_json::from_str(&text).unwrap();
        Deployment::from_value(&value).unwrap()
    }

    #[test]
    fn the_oldest_plans_are_forgotten() {
        let own = Arc::new(deployment(1));
        let mut plans = Plans::new(own.clone());
        let document = canonical(&own).unwrap();
        let peer = DeploymentDigest::of(&document);
        plans.meet(peer, &document).unwrap();
        for tokens in 1..=100 {
            let ask = RouteAsk {
                peer,
                rank: crate::ids::Rank(0),
                local_is_source: true,
                request: crate::plan::Request::tokens(tokens),
            };
            assert_eq!(
                plans.plan(&ask).unwrap().plan.slices(),
                2,
                "keys and values"
            );
        }
        let oldest = |plans: &Plans| plans.recent[0].ask.request.tokens;
        assert_eq!((plans.recent.len(), oldest(&plans)), (MOST_PLANS, 37));
        forget_oldest(&mut plans.recent, MOST_PLANS, 7);
        assert_eq!((plans.recent.len(), oldest(&plans)), (3, 98));
    }

    #[test]
    fn a_connected_peer_is_never_forgotten() {
        let mut plans = Plans::new(Arc::new(deployment(1)));
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
