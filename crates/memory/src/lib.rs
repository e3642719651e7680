//! Host memory that holds KV caches, and the engines that copy between such memories, or to and from streams.
//!
//! | to do this | begin with |
//! |---|---|
//! | register an engine's cache, or allocate one | [`Memory`] |
//! | run a bound plan between two memories | [`copy::copy()`] |
//! | gather a memory into a stream, or scatter a stream into it | [`copy::MemoryStream`] |
//! | see a component as an array `[L, B, S, H, C]` | `array`, with the feature `ndarray` |
//!
//! A [`Memory`] is the allocations of one rank and one group. It gives the addresses of a
//! [`Program`](transload_plan::program::Program) their meaning: the upper bits of an address number one of the
//! allocations, the lower ones are the offset inside it ([`split_address`](transload_plan::program::split_address)). It
//! consists of buffers that it owns ([`Memory::allocate`]), or of an engine's cache or a mapping that a keeper keeps
//! alive ([`Memory::from_raw_parts`]).
//!
//! # Other writers
//!
//! The engine that owns a cache writes to it, and two transfers may write to one block. So these bytes are only copied
//! from and to pointers, never seen through a Rust reference, and nothing depends on their values. A copy that races with
//! a writer delivers old bytes, new bytes, or a mixture. Leases and commits ensure that no such copy is reported as good;
//! this crate cannot.

#[cfg(test)]
extern crate self as transload_memory;

pub mod copy;
mod memory;

#[cfg(feature = "ndarray")]
pub use memory::array;
pub use memory::{Access, AccessError, CheckError, MAX_ALLOCATIONS, Memory, MemoryError};
pub use transload_layout::{MAX_ALLOCATION_BYTES, Side};

/// Items for the tests, benches and crates of this repository. They are not part of the interface and change without
/// notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::copy::settle;
    pub use crate::memory::Extents;
}
