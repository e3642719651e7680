//! The handover: how the two ends of a ring get the same memory.
//!
//! A [`Listener`] has a socket with a random name. A peer that connects must be of an allowed user, and must hold a
//! [`Token`](transload_wire::internal::ring::Token) that the two agents agreed upon over their mutually authenticated control connection; that binds the
//! memory to the session. Then either side offers one [ring](super::slots) for each [`Connection`], which afterwards
//! serves as doorbell and sign of life.
//!
//! Every step has a time limit, [`Limits::timeout`]. Descriptors from the peer are counted, checked, and closed if
//! anything is wrong. Each must be an ordinary memfd, sealed in size, of exactly the announced size, which must be
//! within the receiver's limits.

mod connection;
mod error;
mod listener;
mod message;
mod socket;
#[cfg(test)]
mod tests;

pub(crate) use connection::connect_with;
pub(in crate::path) use connection::in_driver;
pub use connection::{Connection, Limits, connect};
pub use error::HandoverError;
pub use listener::{Expected, Listener};
pub(crate) use message::Caches;
