//! Chunks that are being sent to the store.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::StoreError;
use crate::hash::ChunkHash;

#[derive(Debug)]
pub(super) struct Writer {
    limit: usize,
    state: Mutex<State>,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Unacknowledged chunks: being sent, or failed and to be sent again.
    pending: HashMap<ChunkHash, Pending>,
    bytes: usize,
    last: u64,
}

/// The way to write a chunk. A retry uses the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Create,
    /// Overwrites an existing one, to refresh its age and repair it.
    Refresh,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    data: Bytes,
    how: How,
    failed: Option<String>,
}

impl Writer {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), progress: Condvar::new() }
    }

    pub(super) fn has(&self, hash: &ChunkHash) -> bool {
        self.state().pending.contains_key(hash)
    }

    pub(super) fn pending(&self, hash: &ChunkHash) -> Option<Bytes> {
        let state = self.state();
        state.pending.get(hash).map(|pending| pending.data.clone())
    }

    /// Queues a chunk, which the caller then sends. Returns `false` if it is queued already. Waits while too many bytes
    /// are unacknowledged.
    /// Returns an error if all queued chunks have failed, so that no room can be expected. They stay and are sent again
    /// by the next flush.
    pub(super) fn take(&self, hash: ChunkHash, data: Bytes, how: How) -> Result<bool, StoreError> {
        let mut state = self.state();
        while state.bytes > 0 && state.bytes.saturating_add(data.len()) > self.limit {
            if state.pending.values().all(|pending| pending.failed.is_some()) {
                return Err(state.failure());
            }
            state = self.wait(state);
        }
        if state.pending.contains_key(&hash) {
            return Ok(false);
        }
        state.last += 1;
        state.bytes += data.len();
        let pending = Pending { number: state.last, data, how, failed: None };
        state.pending.insert(hash, pending);
        Ok(true)
    }

    pub(super) fn settle(&self, hash: &ChunkHash, outcome: Result<(), StoreError>) {
        let mut state = self.state();
        match outcome {
            Ok(()) => {
                if let Some(pending) = state.pending.remove(hash) {
                    state.bytes -= pending.data.len();
                }
            }
            Err(error) => {
                if let Some(pending) = state.pending.get_mut(hash) {
                    pending.failed = Some(error.to_string());
                }
            }
        }
        drop(state);
        self.progress.notify_all();
    }

    pub(super) fn again(&self) -> Vec<(ChunkHash, Bytes, How)> {
        let mut state = self.state();
        let failed = state.pending.iter_mut().filter_map(|(hash, pending)| {
            pending.failed.take()?;
            Some((*hash, pending.data.clone(), pending.how))
        });
        failed.collect()
    }

    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let last = state.last;
        loop {
            let mut before = state.pending.values().filter(|pending| pending.number <= last);
            if before.any(|pending| pending.failed.is_none()) {
                state = self.wait(state);
                continue;
            }
            let failed = state.pending.values().any(|pending| pending.number <= last);
            return if failed { Err(state.failure()) } else { Ok(()) };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can occur between changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.progress.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn failure(&self) -> StoreError {
        let why = self.pending.values().find_map(|pending| pending.failed.clone());
        StoreError::remote("put chunks on s3", why.unwrap_or_default())
    }
}
