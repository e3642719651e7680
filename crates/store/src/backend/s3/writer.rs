//! Chunks on their way to the store.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::StoreError;
use crate::hash::ChunkHash;

/// Which chunks are under way, and which failed.
#[derive(Debug)]
pub(super) struct Writer {
    limit: usize,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Not acknowledged: under way, or failed and to be sent again.
    pending: HashMap<ChunkHash, Pending>,
    bytes: usize,
    last: u64,
}

/// How a chunk is to be written, also when that failed and is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// If there is none: what is there stays.
    Create,
    /// Though there is one, so that it is young and whole.
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
        Self { limit, state: Mutex::default(), news: Condvar::new() }
    }

    /// Whether a chunk is under way already.
    pub(super) fn has(&self, hash: &ChunkHash) -> bool {
        self.state().pending.contains_key(hash)
    }

    pub(super) fn pending(&self, hash: &ChunkHash) -> Option<Bytes> {
        let state = self.state();
        state.pending.get(hash).map(|pending| pending.data.clone())
    }

    /// Takes a chunk over, whose sending is to be started next; `false` if it is under way already. Waits
    /// while too many bytes are.
    ///
    /// # Errors
    /// If everything that takes up the room failed. It stays and is sent again by the next flush.
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

    /// A chunk was sent, or was not.
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
        self.news.notify_all();
    }

    /// What failed and is to be sent once more.
    pub(super) fn again(&self) -> Vec<(ChunkHash, Bytes, How)> {
        let mut state = self.state();
        let failed = state.pending.iter_mut().filter_map(|(hash, pending)| {
            pending.failed.take()?;
            Some((*hash, pending.data.clone(), pending.how))
        });
        failed.collect()
    }

    /// Waits until everything taken over before was sent.
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
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.news.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn failure(&self) -> StoreError {
        let why = self.pending.values().find_map(|pending| pending.failed.clone());
        StoreError::remote("put chunks on s3", why.unwrap_or_default())
    }
}
