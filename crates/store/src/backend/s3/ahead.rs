//! Chunks that a caller said it will read soon, each handed out once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use bytes::Bytes;

use crate::hash::ChunkHash;

/// Chunks under way or waiting to be read; the oldest goes when another is wanted.
const MOST: usize = 256;

#[derive(Debug)]
pub(super) struct Ahead {
    limit: usize,
    held: Arc<AtomicUsize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<ChunkHash, mpsc::Receiver<Option<Held>>>,
    order: VecDeque<ChunkHash>,
}

/// Where a fetched chunk goes.
#[derive(Debug)]
pub(super) struct Place {
    limit: usize,
    held: Arc<AtomicUsize>,
    tell: mpsc::SyncSender<Option<Held>>,
}

/// Bytes that count until they are handed out or dropped.
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

impl Place {
    /// Keeps the chunk, unless there is no room: then its reader fetches it.
    pub(super) fn fill(self, chunk: Option<Bytes>) {
        let held = chunk.and_then(|data| {
            let before = self.held.fetch_add(data.len(), Ordering::Relaxed);
            let fits = before.saturating_add(data.len()) <= self.limit;
            let held = Held { data, held: self.held.clone() };
            fits.then_some(held)
        });
        // Nobody may want it any more.
        let _ = self.tell.send(held);
    }
}

impl Ahead {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, held: Arc::default(), state: Mutex::default() }
    }

    /// A place for a chunk to be fetched into, unless it has one.
    pub(super) fn want(&self, hash: ChunkHash) -> Option<Place> {
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
        Some(Place { limit: self.limit, held: self.held.clone(), tell })
    }

    /// Waits for a chunk that is under way.
    pub(super) fn take(&self, hash: &ChunkHash) -> Option<Bytes> {
        let chunk = {
            let mut state = self.state();
            let chunk = state.chunks.remove(hash)?;
            state.order.retain(|other| other != hash);
            chunk
        };
        // Each request ends in time.
        let held = chunk.recv().ok().flatten()?;
        Some(held.data.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
