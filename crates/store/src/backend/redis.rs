//! `redis://` and `rediss://`: a store in a Redis or Valkey server.
//!
//! # Addresses and keys
//! The URI is `redis[s]://[user@]host[:port][/db[/prefix...]]`. All handles on one database share their chunks. The
//! prefix goes in front of manifest names, with a `/` between: manifest `m` of `redis://host/0/slot1` is manifest
//! `slot1/m` of `redis://host`.
//!
//! | key | value |
//! |---|---|
//! | `transload:c:<hash in lower-case hex>` | a chunk: a header of 16 bytes, then its bytes |
//! | `transload:m:<prefix><name>` | a manifest: the header, the time of the put, the chunks put before it, its bytes |
//! | `transload:generation`, `transload:removed`, `transload:marks` | the state of collections |
//!
//! The header holds the length and a CRC32C, so a changed value is an error and not data. Other keys of the database
//! are left alone. A node of a Redis Cluster is refused when the store is opened, because the keys of one save would be
//! in several of its slots. A Sentinel is refused too.
//!
//! # Guarantees
//! - A script publishes a manifest in one step, after the server acknowledged every chunk put before on the handle. The
//!   script checks that all these chunks still exist. A chunk may be missing because the server evicted it, lost it in
//!   a restart, or a collection removed it. Then [`StoreError::Collected`](crate::StoreError::Collected) names it. The
//!   check covers the chunks put by any thread since the last published manifest, and those that the publishing thread
//!   put since its own last one. A failed manifest does not change this set, except that a chunk reported missing
//!   leaves it, unless it is put again or a manifest's bytes name it.
//! - A manifest's value records the chunks that it was published with. A collection keeps them, and verifying reports
//!   them if they are missing, even if the manifest's own bytes do not name them.
//! - A chunk that a handle found damaged is written again when it is put on that handle.
//! - Durability is the server's. With `appendfsync always`, acknowledged values survive a crash of the server. With
//!   `everysec` the last second may be lost, in the order of the writes. Without persistence everything is lost. A lost
//!   value is missing, never wrong.
//! - `rediss://` uses the cryptography that the process chose for rustls, or else aws-lc-rs.
//! - A server at its `maxmemory` evicts as its policy says. An evicted chunk reads as `None`, even if a manifest refers
//!   to it.

mod address;
mod collect;
mod connection;
mod failure;
mod fetch;
mod inventory;
mod keys;
mod pool;
mod prefetch;
mod reply;
mod scan;
mod store;
mod writer;

pub use address::{CA_FILE, PASSWORD, RedisOptions};
pub use store::RedisStore;
