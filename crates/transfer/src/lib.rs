//! Plans between KV-cache layouts, and the copies, leases and transports that carry them out.
//!
//! | to do this | begin with | feature |
//! |---|---|---|
//! | slice one rank's cache for another | [`slice_for_tp_transfer`], [`plan::jointly_contiguous_chunks`] | |
//! | plan a transfer, and see what it costs | [`plan::Plan`] | |
//! | copy between two memories of one process | `memory::Memory`, `copy::copy` | `host` |
//! | fill or check a cache through arrays `[L, B, S, H, C]` | `memory::array` | `ndarray` |
//! | move a request's blocks between engines, fast where they share a host | `agent::Agent` | `quic` |
//! | speak the protocol over something else | [`wire`], [`lease`], [`ticket`] | |
//!
//! `quic` is on by default; it brings `host`, and so does `ndarray`. Without features there is no I/O, no clock, no
//! unsafe code: plans and protocol are values and state machines.
//!
//! From two [deployments](transload_layout::Deployment) to chunks, offline:
//!
//! ```
//! use transload_layout::{Deployment, Dtype, Group, Spec};
//! use transload_transfer::plan::{BlockTable, Plan, Request, Tables};
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

pub mod lease;
pub mod moment;
pub mod path;
mod roles;
pub mod ticket;
pub mod wire;

#[cfg(feature = "host")]
pub mod copy;
#[cfg(feature = "host")]
pub mod memory;

#[cfg(feature = "cuda")]
#[cfg_attr(
    not(feature = "quic"),
    expect(
        dead_code,
        reason = "rings and what is registered for them are the agents'"
    )
)]
pub mod device;

#[cfg(feature = "quic")]
pub mod agent;
#[cfg(feature = "quic")]
pub mod data;
#[cfg(feature = "quic")]
pub mod identity;
#[cfg(feature = "quic")]
pub mod quic;

pub use transload_plan as plan;
pub use transload_plan::{codec, content, ids};

pub use transload_layout::{make_meta_kv_cache, slice_for_tp_transfer};
