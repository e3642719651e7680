//! How bytes get from one agent to another.

pub mod quic;
