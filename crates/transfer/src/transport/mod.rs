//! How bytes get from one agent to another.

#[cfg(feature = "local")]
pub mod local;
pub mod quic;
