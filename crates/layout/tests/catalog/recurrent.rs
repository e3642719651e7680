//! Families with recurrent state: which layer keeps what, and how many bytes that is.
//!
//! The expected bytes are computed here from published numbers, independently of the crate.

mod bad;
mod defaults;
mod delta;
mod linear;
mod mamba1;
mod mamba2;
