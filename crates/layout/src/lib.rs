//! KV-cache layouts as data: what a model caches, how a deployment splits it over ranks, and where every byte lies.
//!
//! One shape describes every cache: `[L, B, S, H, C]`: layer slots, blocks, states of a block, heads, content. A [stride
//! order](order) says how the axes are nested in memory, a [spec] says what the content is and how TP ranks split it,
//! and a [`Deployment`] combines both for one side of a transfer. [`slice_for_tp_transfer`] returns the parts that two
//! ranks of two deployments have in common.
//!
//! This crate is pure: no I/O, no clock, no threads, no unsafe code.
//!
//! ```
//! use transload_layout::{Deployment, Dtype, Group, Spec, make_meta_kv_cache};
//!
//! let deployment = Deployment::builder()
//!     .tp(2)
//!     .block_size(16)
//!     .num_blocks(64)
//!     .order("HND")
//!     .group(Group::builder("attn", "0-31", Spec::attention(8, 128, Dtype::Bf16)))
//!     .build()?;
//! let views = make_meta_kv_cache(&deployment, transload_layout::Rank(1));
//! let keys = &views[0][0];
//! assert_eq!(keys.units, 4..8, "rank 1 of 2 holds the upper half of the heads");
//! assert_eq!(keys.view.shape(), [32, 64, 16, 4, 256]);
//! # Ok::<(), transload_layout::document::Faults>(())
//! ```
//!
//! A deployment can also be written as a [document] in TOML or JSON.

#![forbid(unsafe_code)]

mod bounds;
pub mod catalog;
mod deployment;
pub mod document;
mod dtype;
mod footprint;
mod multiple;
pub mod order;
mod partition;
mod placement;
mod slice;
pub mod spec;
mod view;

pub use bounds::MAX_LAYERS;
pub use deployment::{Deployment, DeploymentBuilder, Group, GroupBuilder, LayerSet, Rank};
pub use dtype::Dtype;
pub use footprint::Footprint;
pub use order::Order;
pub use partition::{Partition, PartitionError, Replication, Served, Share};
pub use placement::{Allocation, Placement};
pub use slice::{Side, SliceError, TpRank, make_meta_kv_cache, slice_for_tp_transfer};
pub use spec::Spec;
pub use view::{ALLOCATION_BITS, Axis, ComponentView, Dim, MAX_ALLOCATION_BYTES, View, split_address};

/// Items for the crates of this repository. They are not part of the interface and change without notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::multiple::{greatest_common_divisor, least_common_multiple};
}
