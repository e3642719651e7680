//! Prefetching: fetches chunks that a caller announced, many in one round trip, before they are read.
//!
//! Each chunk is handed out once. While the memory for them is full, fetching waits for the reader. A new announcement
//! drops fetched chunks that were never read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use super::fetch::{Fetcher, MOST_TOGETHER};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The number of chunks in the first exchange, small enough for the first chunk to arrive soon. Each exchange doubles
/// the number, up to `EXCHANGE_BYTES`, so that many small chunks take few round trips.
const FIRST_EXCHANGE: usize = 16;
const EXCHANGE_BYTES: usize = 8 << 20;

/// The maximum number of chunks that wait to be fetched. More are ignored, since a hint may be.
const MOST_WANTED: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Prefetch {
    shared: Arc<Shared>,
    /// The fetching thread, started by the first hint.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    fetcher: Arc<Fetcher>,
    limit: usize,
    /// The time that a reader waits for a chunk that is being fetched before it reads the chunk itself.
    timeout: Duration,
    state: Mutex<State>,
    work: Condvar,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: VecDeque<ChunkHash>,
    entries: HashMap<ChunkHash, Entry>,
    bytes: usize,
    /// The number of chunks in the last exchange; 0 if nothing was wanted since.
    exchange_size: usize,
    stop: bool,
}

#[derive(Debug)]
enum Entry {
    Wanted,
    Fetching,
    Ready(Bytes),
}

impl Prefetch {
    pub(super) fn new(fetcher: Arc<Fetcher>, limit: usize, timeout: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                fetcher,
                limit,
                timeout,
                state: Mutex::default(),
                work: Condvar::new(),
                progress: Condvar::new(),
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
            let started =
                std::thread::Builder::new().name("transload-redis-prefetch".into()).spawn(move || shared.run());
            match started {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    // No thread would ever fetch them.
                    self.shared.forget();
                    return Err(StoreError::io("start a thread")(error));
                }
            }
        }
        Ok(())
    }

    /// Takes a wanted chunk, waiting for it if it is being fetched.
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
                // It will not be fetched before other chunks are read, so do not wait.
                Entry::Wanted if full => {
                    state.entries.remove(hash);
                    return None;
                }
                Entry::Wanted | Entry::Fetching => {}
            }
            let (after, waited) =
                self.shared.progress.wait_timeout(state, self.shared.timeout).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() {
                return None;
            }
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Join, as in `Writer`: the code of the thread may be unloaded next.
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
            // A failed prefetch is ignored. The reader of the chunk will get the error.
            let values = self.fetcher.chunks(&hashes).unwrap_or_else(|_| vec![None; hashes.len()]);
            let mut state = self.state();
            for (hash, value) in hashes.into_iter().zip(values) {
                match value {
                    Some(data) => {
                        state.bytes += data.len();
                        state.entries.insert(hash, Entry::Ready(data));
                    }
                    // Remove it: it may exist by the time it is read.
                    None => {
                        state.entries.remove(&hash);
                    }
                }
            }
            drop(state);
            self.progress.notify_all();
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
                    0 => FIRST_EXCHANGE,
                    longest => (EXCHANGE_BYTES / longest).clamp(1, MOST_TOGETHER),
                };
                let exchange_size = state.exchange_size.saturating_mul(2).max(FIRST_EXCHANGE).min(most);
                let mut hashes = Vec::new();
                while hashes.len() < exchange_size
                    && let Some(hash) = state.wanted.pop_front()
                {
                    // A reader may have taken it out of the map.
                    if let Some(entry @ Entry::Wanted) = state.entries.get_mut(&hash) {
                        *entry = Entry::Fetching;
                        hashes.push(hash);
                    }
                }
                state.exchange_size = hashes.len();
                if !hashes.is_empty() {
                    return Some(hashes);
                }
            } else {
                // Wake readers of chunks that are not being fetched, so that they read these themselves.
                self.progress.notify_all();
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
