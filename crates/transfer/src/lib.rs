//! Moves KV caches between inference engines: memory, copies, and agents that lease, pull and push.
//!
//! | to do this | begin with | feature |
//! |---|---|---|
//! | slice one rank's cache for another | [`slice_for_tp_transfer`], [`plan::jointly_contiguous_chunks`] | |
//! | plan a transfer, and see what it costs | [`plan::Plan`] (`transload-plan`) | |
//! | copy between two memories of one process | [`memory::Memory`], [`copy::copy()`] (`transload-memory`) | |
//! | fill or check a cache through arrays `[L, B, S, H, C]` | `memory::array` | `ndarray` |
//! | reach caches in the memory of NVIDIA GPUs | `device::Gpu` (`transload-cuda`) | `cuda` |
//! | move a request's blocks between engines, fast where they share a host | [`agent::Agent`] | |
//! | speak the protocol over something else | [`wire`], [`lease`], [`ticket`] (`transload-wire`) | |
//!
//! A crate that needs only plans, the protocol or copies names the smaller crate.

pub mod agent;
pub mod data;
pub mod identity;
pub mod path;
pub mod quic;

#[cfg(feature = "cuda")]
pub use transload_cuda as device;
pub use transload_memory as memory;
pub use transload_memory::copy;
pub use transload_plan as plan;
pub use transload_plan::{codec, content, ids};
pub use transload_wire as wire;
pub use transload_wire::{lease, ticket};

pub use transload_layout::{make_meta_kv_cache, slice_for_tp_transfer};
