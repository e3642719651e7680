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
mod nest;
pub mod program;
mod route;
mod stream;
mod summary;
mod table;
mod tokens;

use std::sync::Arc;

use thiserror::Error;
use transload_layout::{Deployment, Rank};

pub use bind::{BoundPlan, BoundRoute};
pub use bridge::{BridgeError, pair_groups};
pub use digest::PlanDigest;
pub use nest::{ComponentSet, ShapeMismatch, jointly_contiguous_chunks};
pub use route::Route;
pub use stream::{RouteStream, Section};
pub use summary::{ChunkHistogram, Summary};
pub use table::{BindError, BlockTable, Side, Tables};

use route::GroupPlan;

/// The largest token position there may be (2^40), so that sums of sizes never overflow.
const MAX_TOKENS: u64 = 1 << 40;

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
    /// When the two do not hold the same cache, or the range of tokens is absurd.
    pub fn compile(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
    ) -> Result<Self, PlanError> {
        let groups = route::groups(src, dst, request)?;
        let mut routes =
            Vec::with_capacity((src.tp().max(dst.tp()) * src.pp().max(dst.pp())) as usize);
        for dst_stage in 0..dst.pp() {
            for src_stage in 0..src.pp() {
                let stages = route::Stages::new(src, src_stage, dst, dst_stage, &groups);
                for dst_rank in 0..dst.tp() {
                    for src_rank in 0..src.tp() {
                        routes.extend(stages.route(src_rank, dst_rank));
                    }
                }
            }
        }
        routes.sort_by_key(|route| (route.dst_rank, route.src_rank));
        Ok(Self {
            request: *request,
            groups: groups.into(),
            routes,
        })
    }

    /// Plans the one route between two ranks: what each of two peers does on its own. A plan without
    /// routes says that the two ranks share nothing.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); and when a deployment has no such rank.
    pub fn compile_route(
        src: &Deployment,
        dst: &Deployment,
        request: &Request,
        src_rank: Rank,
        dst_rank: Rank,
    ) -> Result<Self, PlanError> {
        for (side, deployment, rank) in [
            (Side::Source, src, src_rank.0),
            (Side::Destination, dst, dst_rank.0),
        ] {
            let last = deployment.tp() * deployment.pp() - 1;
            if rank > last {
                return Err(PlanError::NoSuchRank { side, rank, last });
            }
        }
        let groups = route::groups(src, dst, request)?;
        let (src_tp, src_stage) = src.split_rank(src_rank);
        let (dst_tp, dst_stage) = dst.split_rank(dst_rank);
        let stages = route::Stages::new(src, src_stage, dst, dst_stage, &groups);
        let routes = stages.route(src_tp, dst_tp).into_iter().collect();
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

    /// How many blocks of each side's table a request touches in a group: entries
    /// `first..end` of the table.
    pub fn table_entries(&self, group: usize, side: Side) -> std::ops::Range<u64> {
        self.groups[group].entries(side)
    }

    /// Segments: stretches of tokens inside one block of each side, over all groups.
    pub fn segments(&self) -> u64 {
        self.groups.iter().map(GroupPlan::segments).sum()
    }
}
