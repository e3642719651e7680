//! Prefetching: fetches chunks that a caller announced. Each is handed out once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use bytes::Bytes;

use crate::hash::ChunkHash;

/// The maximum number of chunks that are being fetched or wait to be read. A new one replaces the oldest.
const MOST: usize = 256;

#[derive(Debug)]
pub(super) struct Prefetch {
    limit: usize,
    held: Arc<AtomicUsize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<ChunkHash, mpsc::Receiver<Option<Held>>>,
    order: VecDeque<ChunkHash>,
}

#[derive(Debug)]
pub(super) struct Slot {
    limit: usize,
    held: Arc<AtomicUsize>,
    tell: mpsc::SyncSender<Option<Held>>,
}

/// Bytes that count towards the limit until they are handed out or dropped.
#[derive(Debug)]
struct Held {
    data: Bytes,
    held: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

impl Slot {
    /// Keeps the chunk if there is room. Otherwise its reader fetches it.
    pub(super) fn fill(self, chunk: Option<Bytes>) {
        let held = chunk.and_then(|data| {
            let before = self.held.fetch_add(data.len(), Ordering::Relaxed);
            let fits = before.saturating_add(data.len()) <= self.limit;
            let held = Held { data, held: self.held.clone() };
            fits.then_some(held)
        });
        // The receiver may have been dropped.
        let _ = self.tell.send(held);
    }
}

impl Prefetch {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, held: Arc::default(), state: Mutex::default() }
    }

    /// Returns a slot to fetch a chunk into, or `None` if it is being fetched already.
    pub(super) fn want(&self, hash: ChunkHash) -> Option<Slot> {
        let mut state = self.state();
        if state.chunks.contains_key(&hash) {
            return None;
        }
        while state.order.len() >= MOST {
            if let Some(oldest) = state.order.pop_front() {
                state.chunks.remove(&oldest);
            }
        }
        let (tell, chunk) = mpsc::sync_channel(1);
        state.chunks.insert(hash, chunk);
        state.order.push_back(hash);
        Some(Slot { limit: self.limit, held: self.held.clone(), tell })
    }

    /// Takes a wanted chunk, waiting for it if it is being fetched.
    pub(super) fn take(&self, hash: &ChunkHash) -> Option<Bytes> {
        let chunk = {
            let mut state = self.state();
            let chunk = state.chunks.remove(hash)?;
            state.order.retain(|other| other != hash);
            chunk
        };
        // This does not wait for ever, since each request has a time limit.
        let held = chunk.recv().ok().flatten()?;
        Some(held.data.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
