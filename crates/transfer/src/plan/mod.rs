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
mod stream;
mod summary;
mod table;
mod tokens;

use std::sync::Arc;

use thiserror::Error;
use transload_layout::{Deployment, Rank};

pub use bind::{BoundPlan, BoundRoute, ChunkCount};
pub use bridge::{BridgeError, pair_groups};
pub use digest::PlanDigest;
pub use nest::{ComponentSet, PairError, jointly_contiguous_chunks};
pub use route::Route;
pub use stream::{RouteStream, Section};
pub use summary::{ChunkHistogram, Summary};
pub use table::{BindError, BlockTable, Tables};
pub use transload_layout::Side;

use route::GroupPlan;

/// The largest token position there may be (2^40), so that sums of sizes never overflow.
const MAX_TOKENS: u64 = 1 << 40;

/// The most bytes that a plan moves (256 PiB), so that neither sums of chunks nor the sizes of lists of them
/// overflow.
const MAX_BYTES: u64 = 1 << 58;

/// What is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        self.start + self.tokens
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

    /// Plans the routes of one rank of one side: what an agent needs for a pull or a push.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); and when the side has no such rank.
    pub fn compile_for(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        side: Side,
        rank: Rank,
    ) -> Result<Self, PlanError> {
        match side {
            Side::Source => Self::compile_some(src, dst, request, Some(rank), None),
            Side::Destination => Self::compile_some(src, dst, request, None, Some(rank)),
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
        Self::compile_some(src, dst, request, Some(src_rank), Some(dst_rank))
    }

    fn compile_some(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        only_src: Option<Rank>,
        only_dst: Option<Rank>,
    ) -> Result<Self, PlanError> {
        let src_ranks = ranks(src, Side::Source, only_src)?;
        let dst_ranks = ranks(dst, Side::Destination, only_dst)?;
        let groups = route::groups(src, dst, request)?;
        let mut routes = Vec::with_capacity(src_ranks.len().max(dst_ranks.len()));
        // Ranks of a stage follow one another.
        for dst_stage in dst_ranks.chunk_by(|a, b| dst.split_rank(*a).1 == dst.split_rank(*b).1) {
            for src_stage in src_ranks.chunk_by(|a, b| src.split_rank(*a).1 == src.split_rank(*b).1)
            {
                let (src_pp, dst_pp) = (
                    src.split_rank(src_stage[0]).1,
                    dst.split_rank(dst_stage[0]).1,
                );
                let stages = route::Stages::new(src, src_pp, dst, dst_pp, &groups);
                for dst_rank in dst_stage {
                    for src_rank in src_stage {
                        let (src_tp, dst_tp) =
                            (src.split_rank(*src_rank).0, dst.split_rank(*dst_rank).0);
                        routes.extend(stages.route(src_tp, dst_tp));
                    }
                }
            }
        }
        let moved = routes.iter().flat_map(|route| &route.groups);
        let moved = moved.map(|group| u128::from(group.bytes(&groups[group.group])));
        let bytes: u128 = moved.sum();
        if bytes > MAX_BYTES.into() {
            return Err(PlanError::TooManyBytes { bytes });
        }
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

    /// How many bytes a route moves.
    pub fn route_bytes(&self, route: &Route) -> u64 {
        let groups = route.groups.iter();
        groups
            .map(|group| group.bytes(&self.groups[group.group]))
            .sum()
    }

    /// The most places that binding a route to a stream takes: 24 bytes and some nanoseconds each. Costs O(slices).
    pub fn most_places(&self, route: &Route) -> u64 {
        let of_group = |group: &route::RouteGroup| {
            let layers = match self.request.by_layer {
                true => group.layers.len() as u64,
                false => 1,
            };
            let cuts = group.slices.iter().map(|slice| {
                let range = self.groups[group.group].ranges[slice.class.range];
                let entries = |block| range.entries(block).count() as u64;
                entries(range.src_block) + entries(range.dst_block)
            });
            layers * cuts.sum::<u64>()
        };
        route.groups.iter().map(of_group).sum()
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

/// The ranks of one side, or the one that is asked for.
fn ranks(deployment: &Deployment, side: Side, only: Option<Rank>) -> Result<Vec<Rank>, PlanError> {
    let last = deployment.tp() * deployment.pp() - 1;
    match only {
        None => Ok(deployment.ranks().collect()),
        Some(rank) if rank.0 <= last => Ok(vec![rank]),
        Some(rank) => Err(PlanError::NoSuchRank {
            side,
            rank: rank.0,
            last,
        }),
    }
}
