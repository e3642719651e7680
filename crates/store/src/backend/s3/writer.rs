//! Chunks on their way to the store.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::StoreError;
use crate::hash::ChunkHash;

/// Which chunks are under way, which failed, and which were found.
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
    /// Found or acknowledged here since the handle was opened, and when. Old ones are asked for again.
    known: HashMap<ChunkHash, Instant>,
    last: u64,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    data: Bytes,
    failed: Option<String>,
}

/// How many chunks a handle remembers; beyond it asks again, which is only slower.
const MOST_KNOWN: usize = 1 << 20;

impl Writer {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            state: Mutex::default(),
            news: Condvar::new(),
        }
    }

    /// Whether a chunk is under way already.
    pub(super) fn has(&self, hash: &ChunkHash) -> bool {
        self.state().pending.contains_key(hash)
    }

    pub(super) fn pending(&self, hash: &ChunkHash) -> Option<Bytes> {
        let state = self.state();
        state.pending.get(hash).map(|pending| pending.data.clone())
    }

    /// Takes note of a chunk that the store has.
    pub(super) fn found(&self, hash: ChunkHash) {
        self.state().remember(hash);
    }

    /// Takes a chunk over, whose sending is to be started next; `false` if it is under way already. Waits
    /// while too many bytes are.
    ///
    /// # Errors
    /// If everything that takes up the room failed. It stays and is sent again by the next flush.
    pub(super) fn take(&self, hash: ChunkHash, data: Bytes) -> Result<bool, StoreError> {
        let mut state = self.state();
        while state.bytes > 0 && state.bytes.saturating_add(data.len()) > self.limit {
            if state
                .pending
                .values()
                .all(|pending| pending.failed.is_some())
            {
                return Err(state.failure());
            }
            state = self.wait(state);
        }
        if state.pending.contains_key(&hash) {
            return Ok(false);
        }
        state.last += 1;
        state.bytes += data.len();
        let pending = Pending {
            number: state.last,
            data,
            failed: None,
        };
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
                state.remember(*hash);
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
    pub(super) fn again(&self) -> Vec<(ChunkHash, Bytes)> {
        let mut state = self.state();
        let failed = state.pending.iter_mut().filter_map(|(hash, pending)| {
            pending.failed.take()?;
            Some((*hash, pending.data.clone()))
        });
        failed.collect()
    }

    /// Waits until everything taken over before was sent.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let last = state.last;
        loop {
            let mut before = state
                .pending
                .values()
                .filter(|pending| pending.number <= last);
            if before.any(|pending| pending.failed.is_none()) {
                state = self.wait(state);
                continue;
            }
            let failed = state.pending.values().any(|pending| pending.number <= last);
            return if failed { Err(state.failure()) } else { Ok(()) };
        }
    }

    /// Chunks that were found or sent so long ago that a collection may have come since. From here on the
    /// caller looks after them.
    pub(super) fn found_before(&self, age: Duration) -> Vec<ChunkHash> {
        let mut state = self.state();
        let old: Vec<ChunkHash> = state
            .known
            .extract_if(|_, since| since.elapsed() >= age)
            .map(|(hash, _)| hash)
            .collect();
        old
    }

    /// Forgets what it knows: the caller was told to put everything again.
    pub(super) fn forget(&self) {
        self.state().known.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.news
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remember(&mut self, hash: ChunkHash) {
        if self.known.len() < MOST_KNOWN {
            self.known.insert(hash, Instant::now());
        }
    }

    fn failure(&self) -> StoreError {
        let why = self
            .pending
            .values()
            .find_map(|pending| pending.failed.clone());
        StoreError::remote("put chunks on s3", why.unwrap_or_default())
    }
}
