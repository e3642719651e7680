//! A tier: a store and its statistics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::stats::TierStats;
use crate::backend::memory::MemoryStore;
use crate::backend::{Backend, Put};
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// A store as a tier of a [`TierStore`](super::TierStore).
#[derive(Debug)]
pub struct Tier {
    pub(super) store: Arc<dyn Backend>,
    /// The store, if it is in memory, where no other process sees it.
    memory: Option<MemoryStore>,
    /// Whether it is memory above another tier. Then it keeps single chunks and needs no manifests.
    pub(super) is_cache: bool,
    stats: Mutex<TierStats>,
}

impl Tier {
    /// Makes a tier of any store. The name is for statistics.
    pub fn new(name: impl Into<String>, store: Arc<dyn Backend>) -> Self {
        let stats = TierStats { tier: name.into(), ..TierStats::default() };
        Self { store, memory: None, is_cache: false, stats: Mutex::new(stats) }
    }

    /// Makes a tier of a store in memory, which no other process sees.
    pub fn memory(name: impl Into<String>, store: MemoryStore) -> Self {
        Self { memory: Some(store.clone()), ..Self::new(name, Arc::new(store)) }
    }

    pub(super) fn stats(&self) -> TierStats {
        TierStats { evictions: self.memory.as_ref().map(MemoryStore::evictions), ..lock(&self.stats).clone() }
    }

    pub(crate) fn outlives(&self) -> bool {
        self.memory.is_none()
    }

    pub(super) fn count(&self, which: impl Fn(&mut TierStats) -> &mut u64, more: usize) {
        *which(&mut lock(&self.stats)) += more as u64;
    }

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

    /// Puts a copy of a chunk. Returns `None`, and counts it as skipped, if the tier refuses.
    pub(super) fn copy_chunk(&self, hash: &ChunkHash, data: &Bytes) -> Option<Put> {
        let put = match &self.memory {
            Some(memory) if self.is_cache => memory.cache_chunk(hash, data.clone()),
            _ => self.store.put_chunk(hash, data),
        };
        self.count(|stats| &mut stats.skipped, usize::from(put.is_err()));
        put.ok()
    }

    /// Drops a wrong copy of a chunk, if the tier can.
    pub(super) fn drop_chunk(&self, hash: &ChunkHash) {
        if let Some(memory) = self.memory.as_ref().filter(|_| self.is_cache) {
            memory.drop_chunk(hash);
        }
    }

    pub(super) fn copy_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> bool {
        let put = self.store.put_manifests(manifests).is_ok();
        if !put {
            self.count(|stats| &mut stats.skipped, manifests.len());
        }
        put
    }

    /// Removes a manifest. A failure is only counted, because the manifest would do no harm.
    pub(super) fn drop_manifest(&self, name: &ManifestName) {
        if self.store.delete_manifest(name).is_err() {
            self.count(|stats| &mut stats.failures, 1);
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere cannot leave a counter half changed.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
