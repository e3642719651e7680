//! The `redis` backend against a real `redis-server`, one for each test.

#[cfg(feature = "archive")]
mod archive;
mod contract;
mod crash;
mod hostile;
mod inventory;
mod secure;
mod server;
