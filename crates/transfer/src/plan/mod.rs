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

mod bind;
mod bridge;
mod compile;
mod digest;
mod error;
mod extent;
mod group;
mod join;
mod nest;
mod pieces;
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

pub use crate::ids::PlanDigest;
pub use bind::{BoundPlan, BoundRoute, ChunkCount};
pub use bridge::{BridgeError, pair_groups};
pub use compile::Plan;
pub use error::{MAX_SLICES, PlanError};
pub use nest::{ComponentSet, PairError, jointly_contiguous_chunks};
pub use pieces::Pieces;
pub use request::Request;
pub use route::Route;
pub use stream::{RouteStream, Section};
pub use table::{BindError, BlockTable, MAX_PLACES, Tables};
pub use transload_layout::Side;
