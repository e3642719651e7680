//! Which chunks a handle has found damaged, so that putting them again heals them: to a put, a chunk that is there
//! is a chunk that stays.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::hash::ChunkHash;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Damaged(Mutex<HashSet<ChunkHash>>);

/// How many are remembered; all are forgotten for the next one. Whoever reads one again finds it again.
const MOST: usize = 65_536;

impl Damaged {
    /// Looks at what came of reading a chunk.
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

    /// It is healed, or about to be.
    pub(super) fn forget(&self, hash: &ChunkHash) {
        self.chunks().remove(hash);
    }

    fn chunks(&self) -> MutexGuard<'_, HashSet<ChunkHash>> {
        // A set is whole whatever panicked beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
