//! The path over the network: lanes, QUIC connections of their own, with a stream for each part.

mod send;

pub use send::LaneOut;
