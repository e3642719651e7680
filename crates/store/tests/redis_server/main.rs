//! The `redis` backend against a real `redis-server`, one for each test.

mod contract;
mod crash;
mod hostile;
mod inventory;
mod secure;
