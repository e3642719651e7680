//! `redis://` and `rediss://`: a Redis or Valkey server.
//!
//! # Where things are
//! `redis[s]://[user@]host[:port][/db[/prefix...]]`. The root is the database: all handles on one share their
//! chunks. The prefix goes in front of manifest names, with a `/` between: the manifest `m` of
//! `redis://host/0/slot1` is the manifest `slot1/m` of `redis://host`.
//!
//! | key | value |
//! |---|---|
//! | `transload:c:<hash in lower-case hex>` | a chunk: 16 bytes of header, then its bytes |
//! | `transload:m:<prefix><name>` | a manifest: the header, when it was put, what was put before it, its bytes |
//! | `transload:generation`, `transload:removed`, `transload:marks` | what collections need to know |
//!
//! The header holds the length and a CRC32C, so a changed value is an error and not data. Other keys of the
//! database are left alone. A Redis Cluster is not served: keys of one save lie in several of its slots. It is refused
//! when it is opened, and so is a Sentinel.
//!
//! # What is promised
//! - A manifest is published by a script, in one step, after the server acknowledged every chunk put before
//!   on the handle; the script looks whether they are all still there. If one is not, because the server
//!   evicted it, lost it in a restart or a collection removed it, [`StoreError::Collected`](crate::StoreError::Collected) says which. That
//!   holds for what was put since the last manifest that was published, by any thread, and for what the
//!   publishing thread put since its own last one; a manifest that fails changes nothing about it. Only what
//!   was reported missing is not asked for again, unless it is put again or stands in a manifest's bytes.
//! - The chunks that a manifest was published with are recorded in its value. A collection keeps them, and
//!   verifying misses them, also if the manifest's own bytes do not name them.
//! - A chunk that a handle read and found damaged is written when it is put on that handle again.
//! - Durability is that of the server: with `appendfsync always` what was acknowledged survives a crash of
//!   it; with `everysec` the last second may be lost, chunks and manifests in the order they came; without
//!   persistence everything. What is missing is missing, never wrong.
//! - With `rediss://` the process's cryptography is used if it chose one for rustls, and aws-lc-rs otherwise.
//! - A server at its `maxmemory` evicts what its policy says. A chunk that it took is `None`, also if a
//!   manifest refers to it.

mod address;
mod ahead;
mod collect;
mod connection;
mod failure;
mod fetch;
mod inventory;
mod keys;
mod pool;
mod reply;
mod scan;
mod store;
mod writer;

pub use address::{CA_FILE, PASSWORD, RedisOptions};
pub use store::RedisStore;
