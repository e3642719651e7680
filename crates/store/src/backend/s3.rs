//! `s3://bucket[/path...]`: a store in a bucket of any S3 service.
//!
//! # Root and objects
//! The root is the nearest ancestor of the path, or the path itself, that contains an object `kv_store_format`. The
//! rest of the path goes in front of manifest names, with a `/` between. If there is no such ancestor, the path itself
//! becomes a root. So stores opened at `s3://bucket/kv/a` and `s3://bucket/kv/b` share their chunks if `s3://bucket/kv`
//! was opened before.
//!
//! | object below the root | content |
//! |---|---|
//! | `kv_store_format` | text with the format and its version |
//! | `c/<hash in lower-case hex>` | a chunk: a header of 16 bytes, then its bytes |
//! | `m/n-<escaped name>`, `m/h-<BLAKE3 of a long name>` | a manifest; an empty object if it was removed |
//!
//! A manifest's object has a header, the name with its length, the time of the put, the chunks put before it, and the
//! manifest's bytes.
//!
//! The header of chunks and manifests holds the length and a CRC32C of the value and its key, so a changed value is an
//! error.
//!
//! Credentials, region and endpoint come from the environment, as other S3 clients read them: `AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP=true` for an
//! endpoint without TLS, and the other variables of `AmazonS3Builder::from_env`.
//!
//! # Guarantees
//! - `put_chunk` asks whether the chunk exists and leaves sending it to a background task. A manifest is put, in one
//!   object, after the store acknowledged all these chunks. S3 shows an object whole or not at all. Durability is the
//!   store's.
//! - A manifest needs the chunks put on the handle, by any thread, since the last published manifest, and those that
//!   the publishing thread put since its own last one. Chunks that were put longer ago than half of
//!   [`S3Options::refresh`] are looked up once more. If one is missing,
//!   [`StoreError::Collected`](crate::StoreError::Collected) names it. A failed manifest does not change what the next
//!   one needs, except that a chunk reported missing is not needed any more, unless it is put again or a manifest's
//!   bytes name it.
//! - A manifest's object records the chunks that it was published with. A collection keeps them, and verifying reports
//!   them if they are missing, even if the manifest's own bytes do not name them.
//! - If two handles put a chunk at the same time, the first one stays, by a conditional put (`If-None-Match: *`). For a
//!   store without conditional puts, set `AWS_CONDITIONAL_PUT=disabled`. Then the last one stays. The same holds for
//!   values in parts.
//! - Two removals apply only if the manifest was not put again: eviction by a collection, and removal by a reader who
//!   found it broken. They replace it by an empty object with a conditional put (`If-Match`), and a collection deletes
//!   that after its grace period. No delete has a condition, so the collection looks just before: a manifest that is
//!   put in place of an empty object between these two requests is lost. With `AWS_CONDITIONAL_PUT=disabled` that holds
//!   for every such removal.
//! - A chunk that a handle found damaged is written again when it is put on that handle.
//! - S3 knows when an object was written, not when it was read. So the grace period of a collection counts from a
//!   chunk's last put. A put of an existing chunk older than [`S3Options::refresh`] writes it again, with the bytes
//!   that are stored. [`CollectOptions::grace`](super::CollectOptions::grace) must exceed that age by the duration of
//!   the longest save. Less than twice the age is refused, except zero for a store that is not in use.

mod connector;
mod inventory;
mod keys;
mod options;
mod prefetch;
mod remote;
mod store;
mod writer;

pub use options::{Config, S3Options};
pub use store::S3Store;
