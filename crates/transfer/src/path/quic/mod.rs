//! The path over the network: lanes, QUIC connections of their own, with a stream for each part.

pub mod carrier;

pub use transload_wire::path::quic::{Lanes, Word};
