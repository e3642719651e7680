//! Families with recurrent state: which layer keeps what, and how many bytes that is.
//!
//! Bytes are worked out here from the published numbers, in the open, and not by the crate.

mod bad;
mod defaults;
mod delta;
mod linear;
mod mamba1;
mod mamba2;
