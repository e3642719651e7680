//! Plans of the simulation, small enough to check by eye: the number of bytes between each pair of ranks.

use std::collections::{BTreeMap, HashMap};

use transload_plan::ids::{DeploymentDigest, PlanDigest, Rank};

use crate::{Difference, KnownDeployments, PlanAsk, Planned, Route};

/// A deployment, as far as the protocol depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) ranks: u32,
    /// Varies which routes there are.
    pub(crate) salt: u8,
}

impl Shape {
    pub(crate) fn document(self) -> Vec<u8> {
        vec![self.ranks as u8, self.salt]
    }

    pub(crate) fn digest(self) -> DeploymentDigest {
        DeploymentDigest::of(&self.document())
    }

    fn parse(document: &[u8]) -> Option<Self> {
        let &[ranks, salt] = document else {
            return None;
        };
        let ranks = u32::from(ranks);
        Some(Self { ranks, salt })
    }
}

/// Returns the number of bytes that one rank sends another, or `None` if there is no route. Every destination rank has
/// a source, but not every source rank has a destination.
pub(crate) fn route_bytes(source: (Shape, Rank), destination: (Shape, Rank), tokens: u64) -> Option<u64> {
    let salt = u32::from(source.0.salt) + u32::from(destination.0.salt);
    let always = destination.1.0 % source.0.ranks == source.1.0;
    let sometimes = (source.1.0 * 5 + destination.1.0 * 3 + salt).is_multiple_of(4);
    let width = u64::from((source.1.0 + destination.1.0 + salt) % 3 + 1);
    ((always || sometimes) && tokens > 0).then_some(tokens * width)
}

pub(crate) fn routes(
    source: (Shape, Option<Rank>),
    destination: (Shape, Option<Rank>),
    tokens: u64,
) -> Vec<(Rank, Rank, u64)> {
    let all = |(shape, rank): (Shape, Option<Rank>)| {
        let ranks = (0..shape.ranks).map(Rank);
        ranks.filter(move |r| rank.is_none_or(|only| only == *r))
    };
    let pairs = all(source).flat_map(|s| all(destination).map(move |d| (s, d)));
    let routes = pairs.filter_map(|(s, d)| {
        let bytes = route_bytes((source.0, s), (destination.0, d), tokens)?;
        Some((s, d, bytes))
    });
    routes.collect()
}

#[derive(Debug)]
pub(crate) struct SimPlanner<B> {
    pub(crate) me: Shape,
    pub(crate) known: HashMap<DeploymentDigest, Shape>,
    pub(crate) held: HashMap<DeploymentDigest, usize>,
    pub(crate) blocks: std::marker::PhantomData<B>,
}

impl<B: std::fmt::Debug> KnownDeployments for SimPlanner<B> {
    type Blocks = B;
    type Plan = ();

    fn ranks(&self, deployment: &DeploymentDigest) -> Option<u32> {
        self.known.get(deployment).map(|shape| shape.ranks)
    }

    fn meet(&mut self, deployment: DeploymentDigest, document: &[u8]) -> Result<u32, Difference> {
        let shape = Shape::parse(document).ok_or(Difference {
            field: "document".into(),
            ours: "2 bytes".into(),
            theirs: format!("{} bytes", document.len()).into(),
        })?;
        self.known.insert(deployment, shape);
        Ok(shape.ranks)
    }

    fn hold(&mut self, deployment: &DeploymentDigest) {
        *self.held.entry(*deployment).or_default() += 1;
    }

    fn release(&mut self, deployment: &DeploymentDigest) {
        let held = self.held.get_mut(deployment).expect("it was held");
        *held -= 1;
        // Forgotten at once, which is the earliest that is allowed.
        if *held == 0 {
            self.held.remove(deployment);
            self.known.remove(deployment);
        }
    }
}

impl<B> SimPlanner<B> {
    /// Compiles the plan of all local ranks with a known deployment.
    pub(crate) fn compile(&self, ask: &PlanAsk) -> Result<Planned<()>, String> {
        let peer = self.known.get(&ask.peer).copied();
        let peer = peer.ok_or("unknown deployment")?;
        let (source, destination) = match ask.local_is_source {
            true => (self.me, peer),
            false => (peer, self.me),
        };
        let mut of_ranks: BTreeMap<Rank, Vec<Route>> = BTreeMap::new();
        let all = routes((source, None), (destination, None), ask.request.tokens);
        for (s, d, bytes) in all {
            let (rank, peer_rank) = match ask.local_is_source {
                true => (s, d),
                false => (d, s),
            };
            let digest = blake3::hash(format!("{:?}", (s, d, bytes, ask.request)).as_bytes());
            of_ranks.entry(rank).or_default().push(Route {
                peer_rank,
                bytes,
                digest: PlanDigest(*digest.as_bytes()),
                places: bytes,
            });
        }
        Ok(Planned { slices: of_ranks.values().map(|routes| routes.len() as u64).sum(), routes: of_ranks, plan: () })
    }
}
