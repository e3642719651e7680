//! The trait of storage backends, and the backends of this crate.
//!
//! [`Backend`] is `kv_store_v1` in Rust: the same calls with the same meaning, and batches, which by default make one
//! call after another. All calls block, and several threads may use a handle at once. Operators list, verify and
//! collect a store through [`Inventory`].

mod by_thread;
#[cfg(any(feature = "redis", feature = "s3"))]
mod damaged;
#[cfg(feature = "file")]
pub mod file;
mod guard;
#[cfg(any(feature = "redis", feature = "s3"))]
mod header;
mod inventory;
#[cfg(any(feature = "redis", feature = "s3"))]
mod kept;
mod leftover;
mod memory;
#[cfg(any(feature = "redis", feature = "s3"))]
mod recorded;
#[cfg(feature = "redis")]
pub mod redis;
mod references;
mod revision;
#[cfg(feature = "s3")]
pub mod s3;
mod sealed;
pub(crate) mod tier;

use std::fmt;

use bytes::Bytes;

pub use inventory::{ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage};

pub use leftover::is_leftover;
pub use memory::{MemoryStore, Policy};
pub use references::References;
pub use revision::Revision;
pub use tier::{Tier, TierStats, TierStore, Write};

use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// The outcome of [`Backend::put_chunk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The chunk did not exist, and is stored now.
    Stored,
    /// A chunk with this hash existed and was kept, whatever its bytes are.
    AlreadyThere,
}

/// A store of immutable chunks, keyed by hash, and of named manifests, each of which is replaced as a whole.
///
/// - **Chunks** are keyed by bytes that the caller chooses. Putting an existing chunk again changes nothing.
/// - **Manifests**: a reader sees the old one or the new one. Once [`put_manifest`](Self::put_manifest) has returned,
///   that manifest and every chunk put before on this handle are as durable as the backend promises, and every process
///   can read them. Until then puts may be buffered; the handle itself reads its own.
/// - After an error the state of that value is unspecified. All other values are unaffected: what was acknowledged
///   stays, and no reader sees a part of a value.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Stores `data` under `hash`, unless the store has a chunk of that hash.
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError>;

    /// Returns the bytes stored under `hash`, or `None`.
    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError>;

    /// Publishes every chunk put before on this handle, and then `data` as the manifest `name`. It replaces an earlier
    /// manifest of that name.
    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError>;

    /// Returns the manifest `name`, or `None`.
    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError>;

    /// Removes the manifest `name`. A missing manifest is not an error. Chunks stay until [`Inventory::collect`]
    /// removes them.
    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError>;

    /// Returns the manifest `name` and its revision, without updating its last-used time. `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the backend cannot tell two puts apart, as behind `kv_store_v1`.
    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let _ = name;
        Err(Revision::unsupported())
    }

    /// Removes the manifest `name` if it still has this revision, in one step, so that a newer manifest is never lost.
    /// Returns whether it was removed.
    ///
    /// # Errors
    /// The errors of [`manifest_revision`](Self::manifest_revision).
    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        let _ = (name, revision);
        Err(Revision::unsupported())
    }

    /// Reads a chunk from the last tier, for a caller that found its bytes wrong or missing. Copies in faster tiers are
    /// dropped if possible. Returns `None` also if there are no such copies: reading again would give the same result.
    fn reread_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let _ = hash;
        Ok(None)
    }

    /// Hints that these chunks will be read soon. It may do nothing.
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        let _ = hashes;
        Ok(())
    }

    /// Returns those of these chunks that the store does not have, or `None` if finding out would take a request to a
    /// server.
    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        let _ = hashes;
        None
    }

    /// Returns how many values one round trip can carry, for callers that choose between one large request and several
    /// small ones. 1 if the batches below are loops.
    fn batch(&self) -> usize {
        1
    }

    /// Calls [`get_chunk`](Self::get_chunk) for each hash, in order.
    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        hashes.iter().map(|hash| self.get_chunk(hash)).collect()
    }

    /// Calls [`get_manifest`](Self::get_manifest) for each name, in order. The result is not a snapshot: each manifest
    /// may be old or new.
    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        names.iter().map(|name| self.get_manifest(name)).collect()
    }

    /// Calls [`put_manifest`](Self::put_manifest) for each manifest, in order. If it fails, the published ones are the
    /// first of the list.
    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        manifests.iter().try_for_each(|(name, data)| self.put_manifest(name, data))
    }

    /// Returns the statistics of each tier on this handle, fastest first, if the backend has tiers.
    fn tiers(&self) -> Vec<TierStats> {
        Vec::new()
    }

    /// Returns the operator's interface, if the backend has one. A library behind `kv_store_v1` has none.
    fn inventory(&self) -> Option<&dyn Inventory> {
        None
    }
}
