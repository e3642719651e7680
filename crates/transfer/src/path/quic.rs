//! The path over the network: lanes, QUIC connections of their own, with a stream for each part.

pub(crate) mod carrier;

pub(crate) use transload_wire::internal::quic::{Lanes, Word};
