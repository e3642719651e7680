//! The operator's side of a store: list, verify, collect.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// What a backend that can list its contents offers beside [`Backend`](super::Backend).
///
/// A backend does not understand manifests. A manifest **refers** to a chunk if the chunk's hash stands in
/// its bytes, raw or as hex, and to what was put on the same handle just before: the backends of this crate write
/// that down beside the manifest, until it is replaced. So a consumer need not register formats. One that replaces
/// the same manifest at every save, and puts no hashes into it, must not be collected.
pub trait Inventory: Send + Sync {
    /// Calls `visit` with each manifest, in no order. One that is damaged is left out, since not even its name
    /// is sure: [`verify`](Self::verify) tells of it. An error of `visit` ends the walk.
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError>;

    /// These manifests, or `None`, in that order: as [`get_manifests`](super::Backend::get_manifests), but for an
    /// operator who looks, so it is no use of them where the backend can tell the two apart.
    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError>;

    /// Calls `visit` with each published chunk, in no order. An error of `visit` ends the walk.
    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError>;

    /// What the store holds and takes up.
    fn usage(&self) -> Result<Usage, StoreError>;

    /// Reads everything and reports what is damaged or missing to `fault`, as soon as it is found. What an error ends is
    /// incomplete, and what was reported before stays true.
    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError>;

    /// Removes [what saves left](super::is_leftover) that died, then chunks that no manifest refers to, and with a cap
    /// the least recently used manifests first.
    /// Safe while others read and save: see [`CollectOptions::grace`].
    fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError>;

    /// Adds up the bytes of manifests and chunks that were put or read within this time. A backend that can tell a look from a
    /// use does not use them by this.
    fn in_use(&self, within: Duration) -> Result<u64, StoreError> {
        let now = SystemTime::now();
        let mut bytes: u64 = 0;
        let mut add = |used: Option<SystemTime>, more| {
            // Of another machine's clock, which may be ahead.
            let age = used.map(|used| now.duration_since(used).unwrap_or_default());
            if age.is_some_and(|age| age < within) {
                bytes = bytes.saturating_add(more);
            }
            Ok(())
        };
        self.manifests(&mut |entry| add(entry.last_used, entry.bytes))?;
        self.chunks(&mut |entry| add(entry.last_used, entry.bytes))?;
        Ok(bytes)
    }

    /// The store that the cap of a collection is for, where it is not this one: the last of several tiers.
    fn capped(&self) -> Option<&dyn Inventory> {
        None
    }
}

/// One manifest in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestEntry {
    /// Its name.
    pub name: ManifestName,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last put or read, as exactly as the backend knows.
    pub last_used: Option<SystemTime>,
}

impl ManifestEntry {
    /// An entry without a time.
    pub fn new(name: ManifestName, bytes: u64) -> Self {
        Self { name, bytes, last_used: None }
    }
}

/// One chunk in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkEntry {
    /// Its key.
    pub hash: ChunkHash,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last put or read, as exactly as the backend knows.
    pub last_used: Option<SystemTime>,
}

impl ChunkEntry {
    /// An entry without a time.
    pub fn new(hash: ChunkHash, bytes: u64) -> Self {
        Self { hash, bytes, last_used: None }
    }
}

/// What a store holds and takes up, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Number of manifests.
    pub manifests: u64,
    /// Their bytes.
    pub manifest_bytes: u64,
    /// Number of published chunks.
    pub chunks: u64,
    /// Their bytes.
    pub chunk_bytes: u64,
    /// Everything that counts against the cap: the above, headers, indices, space of removed chunks that
    /// was not given back yet, and saves under way. Equal to the sum where the backend cannot know.
    pub total_bytes: u64,
    /// The size cap, where there is one.
    pub cap: Option<u64>,
}

/// How far a long walk has come, in bytes or items of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `reading chunks`.
    pub step: &'static str,
    /// How much is done.
    pub done: u64,
    /// Of how much. Grows where it is not known before.
    pub total: u64,
}

/// Something damaged or missing that [`Inventory::verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which chunk, manifest or file.
    pub what: String,
    /// What was expected and what was found.
    pub how: String,
}

impl Fault {
    /// The chunk that is damaged or missing, where it is one: `what` is then `chunk` and its hash.
    pub fn chunk(&self) -> Option<ChunkHash> {
        self.what.strip_prefix("chunk ")?.parse().ok()
    }

    /// A chunk that a manifest was saved with is not there.
    #[cfg(any(feature = "redis", feature = "s3"))]
    pub(super) fn missing(hash: &ChunkHash, manifest: &str) -> Self {
        Self {
            what: format!("chunk {hash}"),
            how: format!("it is not there, and manifest {manifest:?} was saved with it"),
        }
    }
}

/// How to collect.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    /// What a save left that was never published stays for this long after it was put. Chunks that no manifest refers
    /// to stay for this long after they were last put or read, or after the
    /// last manifest that referred to them went. It has to be longer than any save takes from its first
    /// chunk to its manifest, and than any reader takes from a manifest to its last chunk; a save that takes
    /// longer fails with [`StoreError::Collected`] and loses nothing else. One hour unless set.
    pub grace: Duration,
    /// Evict the least recently used manifests until the store is not larger than this, in bytes.
    pub cap: Option<u64>,
    /// Only say what would go.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self { grace: Duration::from_secs(3600), cap: None, dry_run: false }
    }
}

/// What a collection removed, or would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Manifests evicted for the cap.
    pub manifests: u64,
    /// Manifests removed because nobody needs them any more: see [`is_leftover`](super::is_leftover).
    pub leftovers: u64,
    /// Chunks removed.
    pub chunks: u64,
    /// Bytes given back.
    pub bytes: u64,
    /// Chunks that no manifest refers to, kept because of the grace period.
    pub in_grace: u64,
    /// Chunks that stay and are known to be damaged, with what lies beside them and cannot go without them. Not all
    /// that are: collecting reads only what it has to, and [`Inventory::verify`] tells which they are.
    pub damaged: u64,
}
