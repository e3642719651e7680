//! One tier: a store, and what was asked of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::backend::memory::MemoryStore;
use crate::backend::{Backend, Put};
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// A store as a tier of a [`TierStore`](super::TierStore).
#[derive(Debug)]
pub struct Tier {
    pub(super) store: Arc<dyn Backend>,
    /// The same, where it is one that no other process sees.
    memory: Option<MemoryStore>,
    /// It is memory above another tier: it keeps each chunk by itself, and needs no manifests.
    pub(super) is_cache: bool,
    stats: Mutex<TierStats>,
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

impl Tier {
    /// Of any store; the name is for statistics.
    pub fn new(name: impl Into<String>, store: Arc<dyn Backend>) -> Self {
        let stats = TierStats { tier: name.into(), ..TierStats::default() };
        Self { store, memory: None, is_cache: false, stats: Mutex::new(stats) }
    }

    /// Of memory that no other process sees.
    pub fn memory(name: impl Into<String>, store: MemoryStore) -> Self {
        Self { memory: Some(store.clone()), ..Self::new(name, Arc::new(store)) }
    }

    pub(super) fn stats(&self) -> TierStats {
        TierStats { evictions: self.memory.as_ref().map(MemoryStore::evictions), ..lock(&self.stats).clone() }
    }

    /// Whether what it has outlives this process.
    pub(crate) fn outlives(&self) -> bool {
        self.memory.is_none()
    }

    /// Adds to one of its counts.
    pub(super) fn count(&self, which: impl Fn(&mut TierStats) -> &mut u64, more: usize) {
        *which(&mut lock(&self.stats)) += more as u64;
    }

    /// Counts what was read.
    pub(super) fn answered(&self, values: &[Option<Bytes>]) {
        let mut stats = lock(&self.stats);
        for value in values {
            match value {
                Some(value) => {
                    stats.hits += 1;
                    stats.bytes += value.len() as u64;
                }
                None => stats.misses += 1,
            }
        }
    }

    /// Puts a copy of a chunk, or counts that it was skipped. Whether it is new; `None` if it is not there.
    pub(super) fn copy_chunk(&self, hash: &ChunkHash, data: &Bytes) -> Option<Put> {
        let put = match &self.memory {
            Some(memory) if self.is_cache => memory.cache_chunk(hash, data.clone()),
            _ => self.store.put_chunk(hash, data),
        };
        self.count(|stats| &mut stats.skipped, usize::from(put.is_err()));
        put.ok()
    }

    /// Drops a copy of a chunk that is wrong, where the tier can.
    pub(super) fn drop_chunk(&self, hash: &ChunkHash) {
        if let Some(memory) = self.memory.as_ref().filter(|_| self.is_cache) {
            memory.drop_chunk(hash);
        }
    }

    /// Puts manifests that another tier has. Whether it could.
    pub(super) fn copy_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> bool {
        let put = self.store.put_manifests(manifests).is_ok();
        if !put {
            self.count(|stats| &mut stats.skipped, manifests.len());
        }
        put
    }

    /// Removes a manifest whose staying would do no harm.
    pub(super) fn drop_manifest(&self, name: &ManifestName) {
        if self.store.delete_manifest(name).is_err() {
            self.count(|stats| &mut stats.failures, 1);
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts are whole whatever panicked beside them.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
