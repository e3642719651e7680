//! What a storage backend does: the trait, and the backends of this crate.
//!
//! [`Backend`] is `kv_store_v1` in Rust: the same calls with the same meaning, plus batches, which have a
//! default that calls one after the other. All calls block; a handle is used from several threads at once.
//! What is behind the calls is nobody's business but [`Inventory`]'s, which is for operators: it lists,
//! verifies and collects.

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

/// What [`Backend::put_chunk`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The chunk was not there; it is now.
    Stored,
    /// A chunk of this hash was there already and was kept, whatever its bytes are.
    AlreadyThere,
}

/// A store of immutable chunks by hash and of named manifests that change at once and whole.
///
/// - **Chunks** are keyed by bytes that the caller chose. Putting one again changes nothing.
/// - **Manifests**: a reader sees the old one or the new one. Once [`put_manifest`](Self::put_manifest) has
///   returned, that manifest and every chunk put before on this handle are durable as the backend
///   promises, and anybody can read them. Until then puts may be buffered; the handle itself reads its own.
/// - After an error nothing is promised about that value, and everything about the others: what was
///   acknowledged stays, and no reader sees a part of anything.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Stores `data` under `hash`, unless something is stored there.
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError>;

    /// The bytes stored under `hash`, or `None`.
    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError>;

    /// Publishes every chunk put before on this handle and then `data` as the manifest `name`, in the place
    /// of an earlier one.
    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError>;

    /// The manifest `name`, or `None`.
    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError>;

    /// Removes the manifest `name`; not an error if there is none. Chunks stay: collecting them is
    /// [`Inventory::collect`]'s work.
    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError>;

    /// The manifest `name`, and which put of it this is; reading it so is no use of it. `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] where the backend cannot tell two puts apart, as behind `kv_store_v1`.
    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let _ = name;
        Err(Revision::unsupported())
    }

    /// Removes the manifest `name` if it was not put again since this revision of it was read, in one step: a newer
    /// one is never lost. Whether it went.
    ///
    /// # Errors
    /// As [`manifest_revision`](Self::manifest_revision).
    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        let _ = (name, revision);
        Err(Revision::unsupported())
    }

    /// Reads a chunk from where everything has to be, for a caller that found its bytes wrong or missing. Copies above are
    /// dropped where they can be. `None` also where there are no copies, and asking again is of no use.
    fn reread_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let _ = hash;
        Ok(None)
    }

    /// A hint that these chunks will be read soon. May do nothing.
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        let _ = hashes;
        Ok(())
    }

    /// Those of these chunks that are not here, where finding out asks no server. `None` if it would.
    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        let _ = hashes;
        None
    }

    /// How many values one round trip can carry, for callers that choose between asking for many at once and
    /// asking for the right one. 1 where the batches below are loops.
    fn batch(&self) -> usize {
        1
    }

    /// [`get_chunk`](Self::get_chunk) of each, in that order.
    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        hashes.iter().map(|hash| self.get_chunk(hash)).collect()
    }

    /// [`get_manifest`](Self::get_manifest) of each, in that order. Each is old or new by itself; together
    /// they are no snapshot.
    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        names.iter().map(|name| self.get_manifest(name)).collect()
    }

    /// [`put_manifest`](Self::put_manifest) of each, in that order: if it fails, those that were published
    /// are the first ones of the list.
    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        manifests.iter().try_for_each(|(name, data)| self.put_manifest(name, data))
    }

    /// What was asked of each tier on this handle, the fastest first, where the backend has tiers.
    fn tiers(&self) -> Vec<TierStats> {
        Vec::new()
    }

    /// The operator's side, where the backend has one. A library behind `kv_store_v1` has none.
    fn inventory(&self) -> Option<&dyn Inventory> {
        None
    }
}
