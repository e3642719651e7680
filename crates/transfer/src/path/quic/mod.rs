//! The path over the network: lanes, QUIC connections of their own, with a stream for each part.

#[cfg(feature = "quic")]
pub mod carrier;
mod negotiation;

pub use negotiation::{Lanes, Word};
