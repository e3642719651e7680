//! `s3://bucket[/path...]`: a bucket of any S3 store.
//!
//! # Where things are
//! The root is the nearest ancestor of the path, the path itself first, that holds an object
//! `kv_store_format`; the rest of the path goes in front of manifest names, with a `/` between. If there is
//! none, the path itself becomes a root. So what is saved below `s3://bucket/kv/a` and `s3://bucket/kv/b`
//! shares its chunks once `s3://bucket/kv` was opened.
//!
//! | object below the root | content |
//! |---|---|
//! | `kv_store_format` | text that says what this is |
//! | `c/<hash in lower-case hex>` | a chunk: 16 bytes of header, then its bytes |
//! | `m/n-<escaped name>`, `m/h-<BLAKE3 of a long name>` | a manifest: header, its name with its length, when it was put, what was put before it, its bytes; empty if it was removed |
//!
//! The header holds the length and a CRC32C of the value and its key, so what was changed is an error.
//!
//! Credentials, region and endpoint come from the environment, as other S3 clients read them:
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`,
//! `AWS_ALLOW_HTTP=true` for an endpoint without TLS, and what else `AmazonS3Builder::from_env` reads.
//!
//! # What is promised
//! - `put_chunk` asks whether the chunk is there and leaves its bytes to a task in the background; a manifest
//!   is put after the store acknowledged all of them, in one object, which S3 shows whole or not at all.
//!   Durability is that of the store.
//! - A manifest needs what was put on the handle since the last manifest that was published, by any thread, and
//!   what the publishing thread put since its own last one. What of it was put longer ago than half of
//!   [`S3Options::refresh`] is looked for once more, and if it is gone, [`StoreError::Collected`](crate::StoreError::Collected) says so. A
//!   manifest that fails changes nothing about what the next one needs; only what was reported missing is not
//!   asked for again, unless it is put again or stands in a manifest's bytes.
//! - The chunks that a manifest was published with are recorded in its object. A collection keeps them, and
//!   verifying misses them, also if the manifest's own bytes do not name them.
//! - Two that put one chunk at once: the first stays, by a conditional put (`If-None-Match: *`). A store that
//!   does not know it is used with `AWS_CONDITIONAL_PUT=disabled`; then the last of those that put it at the
//!   same moment stays. So it is for values in parts.
//! - What is removed only if nobody has put it again (a manifest that a collection evicts, or one that a reader found
//!   useless) is replaced by an empty object, by a conditional put (`If-Match`), and a collection deletes that after its
//!   grace period. No delete has a condition, so it looks just before: a manifest that is put in place of an empty
//!   object between these two requests is lost. With `AWS_CONDITIONAL_PUT=disabled` that is so for whatever is removed.
//! - A chunk that a handle read and found damaged is written when it is put on that handle again.
//! - S3 knows when an object was written, not when it was read. So the grace period of a collection counts
//!   from a chunk's last put; one that is found there and is older than [`S3Options::refresh`] is written
//!   again, with the bytes it has. [`CollectOptions::grace`](super::CollectOptions::grace) has to exceed that
//!   by the longest save; less than twice as much is refused, apart from zero for a store that nobody uses.

mod ahead;
mod connector;
mod inventory;
mod keys;
mod options;
mod remote;
mod store;
mod writer;

pub use options::{Config, S3Options};
pub use store::S3Store;
