//! Chunks that a caller said it will read soon, fetched many to a round trip before it asks.
//!
//! Each is handed out once. When the memory for them is full, fetching waits for the reader; chunks that an
//! earlier call wanted and nobody read make room when a new call comes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use super::fetch::{Fetcher, MOST_TOGETHER};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// Chunks of the first exchange: few enough for the first to come soon. Each that follows takes twice as many, so
/// that many small ones cost few round trips, as far as they have no more than so many bytes.
const TOGETHER: usize = 16;
const EXCHANGE_BYTES: usize = 8 << 20;

/// The longest list of chunks that wait to be fetched; a hint may be forgotten.
const MOST_WANTED: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// Started by the first hint.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    fetcher: Arc<Fetcher>,
    limit: usize,
    /// How long a reader waits for a chunk under way before it asks itself.
    patience: Duration,
    state: Mutex<State>,
    work: Condvar,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: VecDeque<ChunkHash>,
    entries: HashMap<ChunkHash, Entry>,
    bytes: usize,
    /// Chunks of the last exchange; 0 if nothing was wanted since.
    together: usize,
    stop: bool,
}

#[derive(Debug)]
enum Entry {
    Wanted,
    UnderWay,
    Ready(Bytes),
}

impl Ahead {
    pub(super) fn new(fetcher: Arc<Fetcher>, limit: usize, patience: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                fetcher,
                limit,
                patience,
                state: Mutex::default(),
                work: Condvar::new(),
                news: Condvar::new(),
            }),
            thread: Mutex::default(),
        }
    }

    pub(super) fn want(&self, hashes: impl Iterator<Item = ChunkHash>) -> Result<(), StoreError> {
        {
            let mut state = self.shared.state();
            if state.bytes >= self.shared.limit {
                state.entries.retain(|_, entry| !matches!(entry, Entry::Ready(_)));
                state.bytes = 0;
            }
            for hash in hashes {
                if state.wanted.len() == MOST_WANTED {
                    break;
                }
                if let std::collections::hash_map::Entry::Vacant(place) = state.entries.entry(hash) {
                    place.insert(Entry::Wanted);
                    state.wanted.push_back(hash);
                }
            }
        }
        self.shared.work.notify_one();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new().name("transload-redis-ahead".into()).spawn(move || shared.run());
            match started {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    // Nobody would ever fetch them.
                    self.shared.forget();
                    return Err(StoreError::io("start a thread")(error));
                }
            }
        }
        Ok(())
    }

    /// A chunk that was wanted, if it came; it is not kept.
    pub(super) fn take(&self, hash: &ChunkHash) -> Option<Bytes> {
        let mut state = self.shared.state();
        loop {
            let full = state.bytes >= self.shared.limit;
            match state.entries.get(hash)? {
                Entry::Ready(_) => {
                    let Some(Entry::Ready(data)) = state.entries.remove(hash) else {
                        return None;
                    };
                    state.bytes -= data.len();
                    self.shared.work.notify_one();
                    return Some(data);
                }
                // It will not come before somebody reads the others.
                Entry::Wanted if full => {
                    state.entries.remove(hash);
                    return None;
                }
                Entry::Wanted | Entry::UnderWay => {}
            }
            let (after, waited) =
                self.shared.news.wait_timeout(state, self.shared.patience).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() {
                return None;
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // As in `Writer`: its code may be unloaded next.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self) {
        let mut state = self.state();
        state.wanted.clear();
        state.entries.clear();
        state.bytes = 0;
    }

    fn run(&self) {
        while let Some(hashes) = self.next() {
            // A hint is never an error: whoever reads the chunk will meet it.
            let values = self.fetcher.chunks(&hashes).unwrap_or_else(|_| vec![None; hashes.len()]);
            let mut state = self.state();
            for (hash, value) in hashes.into_iter().zip(values) {
                match value {
                    Some(data) => {
                        state.bytes += data.len();
                        state.entries.insert(hash, Entry::Ready(data));
                    }
                    // It may be there by the time somebody asks.
                    None => {
                        state.entries.remove(&hash);
                    }
                }
            }
            drop(state);
            self.news.notify_all();
        }
    }

    fn next(&self) -> Option<Vec<ChunkHash>> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            if state.bytes < self.limit {
                let most = match self.fetcher.longest() {
                    0 => TOGETHER,
                    longest => (EXCHANGE_BYTES / longest).clamp(1, MOST_TOGETHER),
                };
                let together = state.together.saturating_mul(2).max(TOGETHER).min(most);
                let mut hashes = Vec::new();
                while hashes.len() < together
                    && let Some(hash) = state.wanted.pop_front()
                {
                    // Unless a reader took it out of here.
                    if let Some(entry @ Entry::Wanted) = state.entries.get_mut(&hash) {
                        *entry = Entry::UnderWay;
                        hashes.push(hash);
                    }
                }
                state.together = hashes.len();
                if !hashes.is_empty() {
                    return Some(hashes);
                }
            } else {
                // Readers of what has not begun have to go themselves.
                self.news.notify_all();
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
