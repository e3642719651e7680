//! Plans between KV-cache layouts: who sends what to whom, as loop nests over chunks that are contiguous on both sides.
//!
//! | to do this | begin with |
//! |---|---|
//! | plan a transfer, and see what it costs | [`Plan`] |
//! | ask how two views of one component chunk | [`jointly_contiguous_chunks`] |
//! | keep keys and values in less room | [`codec`] |
//! | name what was computed, and who computed it | [`content`], [`ids`] |
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
//! This crate is pure: no I/O, no clock, no threads, no unsafe code. `transload-transfer` carries plans out.
//!
//! ```
//! use transload_layout::{Deployment, Dtype, Group, Spec};
//! use transload_plan::{BlockTable, Plan, Request, Tables};
//!
//! let group = Group::builder("attn", "0-79", Spec::attention(8, 128, Dtype::Bf16));
//! let side = |tp, block_size, order| {
//!     let side = Deployment::builder().tp(tp).block_size(block_size).num_blocks(64).order(order);
//!     side.group(group.clone()).build()
//! };
//! let (prefill, decode) = (side(4, 16, "LBSHC")?, side(8, 64, "LBHSC")?);
//!
//! // What both peers compute on their own, and compare by its digest.
//! let plan = Plan::compile(&prefill, &decode, &Request::tokens(100))?;
//! assert_eq!(plan.routes().len(), 8);
//!
//! // Where the blocks of this request are: seven at the source, two at the destination.
//! let source = Tables(vec![BlockTable::List(vec![5, 9, 2, 3, 4, 40, 41])]);
//! let destination = Tables(vec![BlockTable::List(vec![7, 0])]);
//! let bound = plan.bind(&source, &destination)?;
//! assert_eq!((bound.bytes(), bound.chunks()), (100 * 80 * 8 * 512, 100 * 80 * 8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod bind;
mod bridge;
pub mod codec;
mod compile;
pub mod content;
mod deal;
mod digest;
mod error;
mod extent;
mod group;
pub mod ids;
mod join;
mod nest;
mod pieces;
mod plan;
pub mod program;
mod ranks;
mod request;
mod route;
mod segments;
mod share;
mod sides;
mod size;
mod stages;
mod stream;
mod table;
mod tokens;

pub use bind::{BoundPlan, BoundRoute, ChunkCount};
pub use bridge::{BridgeError, pair_groups, unpaired};
pub use error::{MAX_SLICES, PlanError};
pub use ids::PlanDigest;
pub use nest::{ComponentSet, PairError, jointly_contiguous_chunks};
pub use pieces::Pieces;
pub use plan::Plan;
pub use request::Request;
pub use route::Route;
pub use stream::{RouteStream, Section};
pub use table::{BindError, BlockTable, MAX_PLACES, Tables};
pub use transload_layout::Side;

/// Items for the tests, benches and crates of this repository. They are not part of the interface and change without
/// notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::ids::canonical_document;
}
