//! Operations for a store's operator: list, verify, collect.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// Operations of a backend that can list its contents, in addition to [`Backend`](super::Backend).
///
/// A backend does not understand manifests. A manifest **refers** to a chunk if the chunk's hash stands in its bytes,
/// raw or as hex. It also refers to the chunks that were put on the same handle just before it: the backends of this
/// crate record these with the manifest, until it is replaced. So consumers need not register formats. Do not collect a
/// store whose consumer replaces the same manifest at every save and puts no hashes into it.
pub trait Inventory: Send + Sync {
    /// Calls `visit` with each manifest, in no particular order. Damaged manifests are left out, since not even their
    /// names are certain; [`verify`](Self::verify) reports them. An error of `visit` ends the walk.
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError>;

    /// Returns these manifests in order, `None` for each missing one. Unlike
    /// [`get_manifests`](super::Backend::get_manifests) it does not update their last-used time, where the backend can
    /// avoid that.
    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError>;

    /// Calls `visit` with each published chunk, in no particular order. An error of `visit` ends the walk.
    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError>;

    /// Returns what the store holds and how much space it takes.
    fn usage(&self) -> Result<Usage, StoreError>;

    /// Reads everything, and reports damaged or missing values to `fault` as soon as they are found. If it returns an
    /// error, the walk is incomplete, but the faults reported before remain valid.
    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError>;

    /// Removes [leftovers](super::is_leftover) of saves that never finished, then chunks that no manifest refers to.
    /// With a cap, it first evicts the least recently used manifests. It is safe while others read and save: see
    /// [`CollectOptions::grace`].
    fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError>;

    /// Returns the total bytes of manifests and chunks that were put or read within this time. Where the backend can
    /// avoid it, this does not update their last-used time.
    fn in_use(&self, within: Duration) -> Result<u64, StoreError> {
        let now = SystemTime::now();
        let mut bytes: u64 = 0;
        let mut add = |used: Option<SystemTime>, more| {
            // The time may come from another machine, whose clock may be ahead.
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

    /// Returns the store that a collection's cap applies to, if it is another one: the last of several tiers.
    fn capped(&self) -> Option<&dyn Inventory> {
        None
    }
}

/// A manifest in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestEntry {
    /// The manifest's name.
    pub name: ManifestName,
    /// The manifest's length in bytes.
    pub bytes: u64,
    /// The time of the last put or read, as exactly as the backend knows it.
    pub last_used: Option<SystemTime>,
}

impl ManifestEntry {
    /// Returns an entry without a time.
    pub fn new(name: ManifestName, bytes: u64) -> Self {
        Self { name, bytes, last_used: None }
    }
}

/// A chunk in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkEntry {
    /// The chunk's key.
    pub hash: ChunkHash,
    /// The chunk's length in bytes.
    pub bytes: u64,
    /// The time of the last put or read, as exactly as the backend knows it.
    pub last_used: Option<SystemTime>,
}

impl ChunkEntry {
    /// Returns an entry without a time.
    pub fn new(hash: ChunkHash, bytes: u64) -> Self {
        Self { hash, bytes, last_used: None }
    }
}

/// The contents of a store and the space that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The number of manifests.
    pub manifests: u64,
    /// The bytes of all manifests.
    pub manifest_bytes: u64,
    /// The number of published chunks.
    pub chunks: u64,
    /// The bytes of all published chunks.
    pub chunk_bytes: u64,
    /// Everything that counts against the cap: the bytes above, headers, indices, unreclaimed space of removed chunks,
    /// and saves in progress. Equal to the sum of the above if the backend does not know more.
    pub total_bytes: u64,
    /// The size cap, if there is one.
    pub cap: Option<u64>,
}

/// The progress of a long walk, in bytes or items of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step: `reading chunks`.
    pub step: &'static str,
    /// The amount done.
    pub done: u64,
    /// The amount to do. It grows if it is not known from the start.
    pub total: u64,
}

/// A damaged or missing value that [`Inventory::verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The chunk, manifest or file.
    pub what: String,
    /// The expected and the found content.
    pub how: String,
}

impl Fault {
    /// Returns the hash of the damaged or missing chunk, if the fault is about a chunk: `what` is then `chunk` and the
    /// hash.
    pub fn chunk(&self) -> Option<ChunkHash> {
        self.what.strip_prefix("chunk ")?.parse().ok()
    }

    #[cfg(any(feature = "redis", feature = "s3"))]
    pub(super) fn missing(hash: &ChunkHash, manifest: &str) -> Self {
        Self {
            what: format!("chunk {hash}"),
            how: format!("it is not there, and manifest {manifest:?} was saved with it"),
        }
    }
}

/// Settings of a collection.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    /// The grace period. A chunk that no manifest refers to stays for this long after it was last put or read, or after
    /// the last manifest that referred to it was removed. Leftovers of saves stay for this long after they were put.
    /// The period must be longer than any save takes from its first chunk to its manifest, and than any reader takes
    /// from a manifest to its last chunk. A save that takes longer fails with [`StoreError::Collected`] and loses
    /// nothing else. The default is one hour.
    pub grace: Duration,
    /// Evicts the least recently used manifests until the store is no larger than this, in bytes.
    pub cap: Option<u64>,
    /// Reports what would be removed, and removes nothing.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self { grace: Duration::from_secs(3600), cap: None, dry_run: false }
    }
}

/// The result of a collection: what it removed, or would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Manifests evicted because of the cap.
    pub manifests: u64,
    /// Manifests removed as leftovers of saves or of old formats: see [`is_leftover`](super::is_leftover).
    pub leftovers: u64,
    /// Chunks removed.
    pub chunks: u64,
    /// Bytes reclaimed.
    pub bytes: u64,
    /// Chunks that no manifest refers to, kept because of the grace period.
    pub in_grace: u64,
    /// Chunks that stay and are known to be damaged, and chunks that cannot be removed without them. There may be more:
    /// collecting reads only what it has to, while [`Inventory::verify`] finds all.
    pub damaged: u64,
}
