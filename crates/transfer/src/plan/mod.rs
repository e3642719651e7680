//! Plans: who sends what to whom, as loop nests over chunks that are contiguous on both sides.
//!
//! A [`Plan`] is computed from two deployments and a [`Request`], and from nothing else: it holds no
//! address and no block id, so both peers compute the same plan on their own and compare
//! [digests](Plan::digest). Compiling costs O(axes) for each pair of slices.
//!
//! *Binding* a plan to block tables gives a [`Program`](program::Program), which copy engines run:
//! - [`Plan::bind`] knows the tables of both sides, and joins chunks across neighbouring blocks;
//! - [`Plan::bind_stream`] knows one side's, and gives that side's half of a byte stream. The order of
//!   bytes in the stream depends on the plan alone.
//!
//! Binding costs O(segments), a segment being a stretch of tokens inside one block of each side.
//!
//! ```
//! use transload_layout::{Deployment, document::Value};
//! use transload_transfer::plan::{Plan, Request, Tables};
//!
//! let side = |tp, block, order| {
//!     let text = format!(r#"{{
//!         "schema": "transload.deployment/1", "tp": {tp}, "block_size": {block}, "num_blocks": 256,
//!         "order": "{order}", "group": [{{"name": "attn", "layers": "0-31", "spec": [
//!             {{"kind": "attention", "heads": 8, "head_dim": 128, "dtype": "bf16"}}]}}]}}"#);
//!     Deployment::from_value(&serde_json::from_str::<Value>(&text).unwrap()).unwrap()
//! };
//! let (prefill, decode) = (side(2, 16, "NHD"), side(4, 64, "HND"));
//! let plan = Plan::compile(&prefill, &decode, &Request::tokens(2000)).unwrap();
//! assert_eq!(plan.routes().len(), 4, "each decode rank reads from one prefill rank");
//!
//! // Without a list, block i of the tables is block i of the memory.
//! let bound = plan.bind(&Tables::identity(&plan), &Tables::identity(&plan)).unwrap();
//! assert_eq!(bound.bytes(), 2000 * 32 * 8 * 512);
//! ```

mod bind;
mod bridge;
mod digest;
mod join;
mod nest;
pub mod program;
mod route;
mod segments;
mod share;
mod size;
mod stream;
mod summary;
mod table;
mod tokens;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use transload_layout::{Deployment, Rank};

pub use bind::{BoundPlan, BoundRoute, ChunkCount, MAX_PLACES};
pub use bridge::{BridgeError, pair_groups};
pub use digest::PlanDigest;
pub use nest::{ComponentSet, PairError, jointly_contiguous_chunks};
pub use route::Route;
pub use size::MAX_SLICES;
pub use stream::{RouteStream, Section};
pub use summary::{ChunkHistogram, Summary};
pub use table::{BindError, BlockTable, Tables};
pub use transload_layout::Side;

use route::{GroupPlan, RouteGroup};

/// The largest token position there may be (2^40), so that sums of sizes never overflow.
const MAX_TOKENS: u64 = 1 << 40;

/// The most bytes that a plan moves (256 PiB), so that neither sums of chunks nor the sizes of lists of them
/// overflow.
const MAX_BYTES: u64 = 1 << 58;

/// What is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Position of the first token.
    pub start: u64,
    /// How many tokens.
    pub tokens: u64,
    /// Whether streams carry one layer after another, so that a layer can leave as soon as it is
    /// computed; otherwise they carry one segment of tokens after another.
    pub by_layer: bool,
}

impl Request {
    /// The first `tokens` tokens of a sequence.
    pub const fn tokens(tokens: u64) -> Self {
        Self {
            start: 0,
            tokens,
            by_layer: false,
        }
    }

    /// One past the last token's position.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.tokens)
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The two sides do not hold the same cache.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// A range of tokens that ends beyond 2^40.
    #[error("tokens {start} + {tokens} end beyond the last position there may be, {MAX_TOKENS}")]
    TooManyTokens {
        /// Position of the first token.
        start: u64,
        /// How many tokens.
        tokens: u64,
    },
    /// More bytes than any cluster has.
    #[error("{bytes} bytes would move, more than the most there may be, {MAX_BYTES}")]
    TooManyBytes {
        /// How many, over all routes.
        bytes: u128,
    },
    /// More slices than a plan may have.
    #[error(
        "the plan could have {slices} slices, more than the most there may be, {MAX_SLICES}: one for \
         each component on each pair of ranks that share it"
    )]
    TooManySlices {
        /// How many at most, over all routes.
        slices: u128,
    },
    /// A rank that a deployment does not have.
    #[error("{side} has no rank {rank}: its ranks are 0 to {last}")]
    NoSuchRank {
        /// Which side.
        side: Side,
        /// The rank asked for.
        rank: u32,
        /// The highest rank there is.
        last: u32,
    },
}

/// Routes between all ranks of two deployments, or between some of them.
#[derive(Clone, Debug)]
pub struct Plan {
    request: Request,
    groups: Arc<[GroupPlan]>,
    routes: Vec<Route>,
}

impl Plan {
    /// Plans every route between two deployments.
    ///
    /// # Errors
    /// When the two do not hold the same cache, or the range of tokens, or what moves, is absurd.
    pub fn compile(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
    ) -> Result<Self, PlanError> {
        Self::compile_some(src, dst, request, None, None)
    }

    /// Plans the routes of some ranks of one side: what an agent needs that holds their memory.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); and when the side has no such rank.
    pub fn compile_for(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        side: Side,
        ranks: &[Rank],
    ) -> Result<Self, PlanError> {
        match side {
            Side::Source => Self::compile_some(src, dst, request, Some(ranks), None),
            Side::Destination => Self::compile_some(src, dst, request, None, Some(ranks)),
        }
    }

    /// Plans the one route between two ranks. A plan without routes says that they share nothing.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); and when a side has no such rank.
    pub fn compile_route(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        src_rank: Rank,
        dst_rank: Rank,
    ) -> Result<Self, PlanError> {
        Self::compile_some(src, dst, request, Some(&[src_rank]), Some(&[dst_rank]))
    }

    fn compile_some(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        only_src: Option<&[Rank]>,
        only_dst: Option<&[Rank]>,
    ) -> Result<Self, PlanError> {
        let src_ranks = Ranks::of(src, Side::Source, only_src)?;
        let dst_ranks = Ranks::of(dst, Side::Destination, only_dst)?;
        let groups = route::groups(src, dst, request)?;
        let stages = size::stages((src, &src_ranks), (dst, &dst_ranks));
        size::check((src, &src_ranks), (dst, &dst_ranks), &stages, &groups)?;
        let mut routes = Vec::new();
        for (src_stage, dst_stage) in stages {
            let stages = route::Stages::new(src, src_stage, dst, dst_stage, &groups);
            for dst_rank in dst_ranks.tp.clone() {
                let senders = stages.senders(dst_rank);
                let tp = &src_ranks.tp;
                for src_rank in senders.start.max(tp.start)..senders.end.min(tp.end) {
                    routes.extend(stages.route(src_rank, dst_rank));
                }
            }
        }
        let moved = routes.iter().flat_map(|route| &route.groups);
        let moved = moved.map(|group| u128::from(group.bytes()));
        let bytes: u128 = moved.sum();
        if bytes > MAX_BYTES.into() {
            return Err(PlanError::TooManyBytes { bytes });
        }
        let wanted = |only: Option<&[Rank]>, rank| only.is_none_or(|only| only.contains(&rank));
        routes.retain(|route| wanted(only_src, route.src_rank) && wanted(only_dst, route.dst_rank));
        routes.sort_by_key(|route| (route.dst_rank, route.src_rank));
        Ok(Self {
            request: *request,
            groups: groups.into(),
            routes,
        })
    }

    /// What the plan moves.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The routes, by destination rank, then source rank. Pairs of ranks that share nothing have none.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The route between two ranks.
    pub fn route(&self, src_rank: Rank, dst_rank: Rank) -> Option<&Route> {
        let mut routes = self.routes.iter();
        routes.find(|route| route.src_rank == src_rank && route.dst_rank == dst_rank)
    }

    /// How many slices it has: what its size goes by, half a KiB or so for each.
    pub fn slices(&self) -> u64 {
        let groups = self.routes.iter().flat_map(|route| &route.groups);
        groups.map(|group| group.slices.len() as u64).sum()
    }

    /// How many bytes a route moves.
    pub fn route_bytes(&self, route: &Route) -> u64 {
        route.groups.iter().map(RouteGroup::bytes).sum()
    }

    /// How many bytes move, those that several destination ranks need counted once. Of a plan of
    /// [all routes](Self::compile).
    pub fn distinct_bytes(&self) -> u64 {
        let mut moved: HashMap<(usize, usize), u64> = HashMap::new();
        for group in self.routes.iter().flat_map(|route| &route.groups) {
            for slice in &group.slices {
                let component = moved.entry((group.group, slice.component));
                *component.or_default() += group.slice_bytes(slice);
            }
        }
        let distinct = moved
            .into_iter()
            .map(|((group, component), bytes)| bytes / self.groups[group].readers(component));
        distinct.sum()
    }

    /// The most places that binding a route to a stream takes: 24 bytes and some nanoseconds each. Costs O(slices).
    pub fn most_places(&self, route: &Route) -> u64 {
        let of_group = |group: &RouteGroup| {
            let layers = match self.request.by_layer {
                true => group.layers().len() as u64,
                false => 1,
            };
            let cuts = group
                .slices
                .iter()
                .map(|slice| slice.class.range.segments());
            layers.saturating_mul(cuts.fold(0, u64::saturating_add))
        };
        let of_groups = route.groups.iter().map(of_group);
        of_groups.fold(0, u64::saturating_add)
    }

    /// Names of the groups, in the order in which tables list them (that of the source's document).
    pub fn group_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.groups.iter().map(|group| group.name.as_str())
    }

    /// Which group has this name.
    pub fn group_index(&self, name: &str) -> Option<usize> {
        self.group_names().position(|group| group == name)
    }

    /// Names of the components of a set, those that travel together joined: `kv`, `x+B+C+ssm`.
    pub fn component_names(&self, group: usize, components: ComponentSet) -> String {
        self.groups[group].component_names(components)
    }

    /// Which group of a side's own document a group of the plan is.
    pub fn group_of(&self, side: Side, group: usize) -> usize {
        match side {
            Side::Source => self.groups[group].src_group,
            Side::Destination => self.groups[group].dst_group,
        }
    }

    /// Tables listed as a side's own document lists its groups, in the order of the plan.
    ///
    /// # Errors
    /// When there is not one table for each group.
    pub fn arrange(&self, side: Side, own: &Tables) -> Result<Tables, BindError> {
        let groups = self.groups.len();
        if own.0.len() != groups {
            let given = own.0.len();
            return Err(BindError::TableCount {
                side,
                given,
                groups,
            });
        }
        let arranged = (0..groups).map(|group| own.0[self.group_of(side, group)].clone());
        Ok(Tables(arranged.collect()))
    }

    /// Which entries of a side's block table a request touches in a group.
    pub fn table_entries(&self, group: usize, side: Side) -> std::ops::Range<u64> {
        self.groups[group].entries(side)
    }

    /// Segments: stretches of tokens inside one block of each side, over all groups.
    pub fn segments(&self) -> u64 {
        self.groups.iter().map(GroupPlan::segments).sum()
    }
}

/// The stages of one side that have a part in a plan, and the ranks within each.
struct Ranks {
    stages: Range<u32>,
    tp: Range<u32>,
}

impl Ranks {
    /// All ranks of a deployment; or the stages and the places in them that some ranks span.
    fn of(deployment: &Deployment, side: Side, only: Option<&[Rank]>) -> Result<Self, PlanError> {
        let Some(only) = only else {
            return Ok(Self {
                stages: 0..deployment.pp(),
                tp: 0..deployment.tp(),
            });
        };
        let last = deployment.tp() * deployment.pp() - 1;
        if let Some(&Rank(rank)) = only.iter().find(|rank| rank.0 > last) {
            return Err(PlanError::NoSuchRank { side, rank, last });
        }
        let places = only.iter().map(|rank| deployment.split_rank(*rank));
        let (tp, stages): (Vec<_>, Vec<_>) = places.unzip();
        Ok(Self {
            stages: span(&stages),
            tp: span(&tp),
        })
    }
}

/// From the least to the greatest.
fn span(numbers: &[u32]) -> Range<u32> {
    let ends = numbers.iter().min().zip(numbers.iter().max());
    ends.map_or(0..0, |(least, greatest)| *least..*greatest + 1)
}
