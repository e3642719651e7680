//! How bytes get from one process to another.

#[cfg(feature = "local")]
pub mod local;
