//! Chunks that a handle has found damaged. Putting such a chunk again replaces it, whereas a put usually keeps an
//! existing chunk.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::hash::ChunkHash;

#[derive(Debug, Default)]
pub(super) struct Damaged(Mutex<HashSet<ChunkHash>>);

const MOST: usize = 65_536;

impl Damaged {
    pub(super) fn note<T>(&self, hash: &ChunkHash, read: &Result<T, StoreError>) {
        if !matches!(read, Err(StoreError::Damaged { .. })) {
            return;
        }
        let mut chunks = self.chunks();
        if chunks.len() >= MOST {
            chunks.clear();
        }
        chunks.insert(*hash);
    }

    pub(super) fn has(&self, hash: &ChunkHash) -> bool {
        self.chunks().contains(hash)
    }

    /// Forgets a chunk that has been replaced or is about to be.
    pub(super) fn forget(&self, hash: &ChunkHash) {
        self.chunks().remove(hash);
    }

    fn chunks(&self) -> MutexGuard<'_, HashSet<ChunkHash>> {
        // A panic elsewhere cannot leave the set half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
