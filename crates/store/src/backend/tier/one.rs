//! One tier: a store, what was asked of it, and which of its manifests are not to be believed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::backend::memory::MemoryStore;
use crate::backend::{Backend, Put};
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// A store as a tier of a [`TierStore`](super::TierStore).
#[derive(Debug)]
pub struct Tier {
    name: String,
    pub(super) store: Arc<dyn Backend>,
    /// The same, where it is one that no other process sees.
    pub(super) memory: Option<MemoryStore>,
    counts: Counts,
    outdated: Mutex<Outdated>,
}

/// What a tier was asked for, and what came of it, by one handle. Values are chunks and manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Its URI.
    pub tier: String,
    /// Values that were read from it.
    pub hits: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Values that it was asked for and did not have, or had damaged.
    pub misses: u64,
    /// Times that it failed to answer and the next one was asked.
    pub failures: u64,
    /// Values that were put into it because they were read from one below it.
    pub promotions: u64,
    /// Copies of values that it refused, being full or broken: the put or read that they were made for succeeded.
    pub skipped: u64,
    /// Values that went from it for others, by all handles; `None` where the store does not count.
    pub evictions: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) hits: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) promotions: AtomicU64,
    pub(super) skipped: AtomicU64,
}

/// Manifests that were replaced or removed elsewhere when this tier failed.
#[derive(Debug, Default)]
struct Outdated {
    names: HashSet<ManifestName>,
    /// There are too many to remember.
    all: bool,
}

/// How many are remembered. With more, none of the tier's manifests are read on this handle any more.
const MOST: usize = 65_536;

impl Tier {
    /// Of any store; the name is for statistics.
    pub fn new(name: impl Into<String>, store: Arc<dyn Backend>) -> Self {
        Self {
            name: name.into(),
            store,
            memory: None,
            counts: Counts::default(),
            outdated: Mutex::default(),
        }
    }

    /// Of memory that no other process sees.
    pub fn memory(name: impl Into<String>, store: MemoryStore) -> Self {
        Self {
            memory: Some(store.clone()),
            ..Self::new(name, Arc::new(store))
        }
    }

    pub(super) fn stats(&self) -> TierStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        TierStats {
            tier: self.name.clone(),
            hits: get(&counts.hits),
            bytes: get(&counts.bytes),
            misses: get(&counts.misses),
            failures: get(&counts.failures),
            promotions: get(&counts.promotions),
            skipped: get(&counts.skipped),
            evictions: self.memory.as_ref().map(MemoryStore::evictions),
        }
    }

    /// Whether what it has outlives this process.
    pub(crate) fn outlives(&self) -> bool {
        self.memory.is_none()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn count(&self, which: impl Fn(&Counts) -> &AtomicU64, more: usize) {
        which(&self.counts).fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Counts what was read.
    pub(super) fn answered(&self, values: &[Option<Bytes>]) {
        let hits = values.iter().flatten().count();
        self.count(|counts| &counts.hits, hits);
        self.count(|counts| &counts.misses, values.len() - hits);
        let bytes = values.iter().flatten().map(Bytes::len).sum();
        self.count(|counts| &counts.bytes, bytes);
    }

    /// Puts a copy of a chunk, or counts that it was skipped. Whether it is new.
    pub(super) fn copy_chunk(&self, hash: &ChunkHash, data: &Bytes) -> bool {
        let put = match &self.memory {
            Some(memory) => memory.keep_chunk(hash, data.clone()),
            None => self.store.put_chunk(hash, data),
        };
        self.count(|counts| &counts.skipped, usize::from(put.is_err()));
        matches!(put, Ok(Put::Stored))
    }

    /// Puts copies of manifests. Where it cannot, those that it had are removed. Whether it could.
    pub(super) fn copy_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> bool {
        let put = self.store.put_manifests(manifests).is_ok();
        if put {
            let mut outdated = self.outdated();
            for (name, _) in manifests {
                outdated.names.remove(name);
            }
        } else {
            self.count(|counts| &counts.skipped, manifests.len());
            manifests
                .iter()
                .for_each(|(name, _)| self.drop_manifest(name));
        }
        put
    }

    /// Removes a copy of a manifest. If that fails, it is not read any more.
    pub(super) fn drop_manifest(&self, name: &ManifestName) {
        let removed = self.store.delete_manifest(name).is_ok();
        let mut outdated = self.outdated();
        if removed {
            outdated.names.remove(name);
        } else if outdated.names.len() < MOST {
            outdated.names.insert(name.clone());
        } else {
            outdated.all = true;
        }
    }

    /// Whether what it says of this manifest is not to be believed.
    pub(super) fn is_outdated(&self, name: &ManifestName) -> bool {
        let outdated = self.outdated();
        outdated.all || outdated.names.contains(name)
    }

    fn outdated(&self) -> MutexGuard<'_, Outdated> {
        // A set is whole whatever panicked beside it.
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
