//! The path over the network: lanes, QUIC connections of their own, with a stream for each part.

#[cfg(feature = "quic")]
mod carrier;
mod negotiation;

#[cfg(feature = "quic")]
pub use carrier::{LaneOut, Quic};
pub use negotiation::{Lanes, Word};
