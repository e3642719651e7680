//! Copies for the tiers below the authority, which are made later.
//!
//! The queue has names and hashes; their bytes are read from the tiers above when their turn comes. So what a
//! crash loses are copies, and what waits takes little memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;

use super::names::hold;
use super::one::Tier;
use crate::backend::guard::Guard;
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// How many manifests and chunks may wait, 4 MiB or so. Puts of manifests wait while there are more.
const MOST: usize = 65_536;

/// A queue of changes, and the thread that makes them below.
#[derive(Debug)]
pub(super) struct Back {
    queue: Arc<Queue>,
    /// Which chunks go with the next manifest.
    guard: Guard,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Each name once.
    order: VecDeque<ManifestName>,
    /// With the chunks that are put before it.
    puts: HashMap<ManifestName, Vec<ChunkHash>>,
    /// The one that is being copied.
    busy: Option<ManifestName>,
    waiting: usize,
    closing: bool,
}

impl Back {
    pub(super) fn start(tiers: Arc<Vec<Tier>>, authority: usize) -> Result<Self, StoreError> {
        let queue = Arc::new(Queue::default());
        let shared = queue.clone();
        let work = move || shared.work(&tiers, authority);
        let thread = thread::Builder::new()
            .name("kv-tier-back".into())
            .spawn(work);
        Ok(Self {
            queue,
            guard: Guard::default(),
            thread: Some(thread.map_err(StoreError::io("start a thread for later copies"))?),
        })
    }

    pub(super) fn put_chunk(&self, hash: &ChunkHash) {
        self.guard.put(hash);
    }

    /// The authority has these manifests, whose names are held.
    pub(super) fn put_manifests(
        &self,
        manifests: &[(ManifestName, Bytes)],
    ) -> Result<(), StoreError> {
        let needed = self
            .guard
            .needed(manifests.iter().map(|(_, data)| &data[..]))?;
        // With the first one all chunks are there for the others, too.
        let mut chunks = needed.chunks.clone();
        let mut state = self.queue.state();
        for (name, _) in manifests {
            state.add(name, std::mem::take(&mut chunks));
        }
        drop(state);
        self.queue.changed.notify_all();
        self.guard.published(&needed);
        Ok(())
    }

    /// Waits while too much waits. Called before names are held, which the thread needs.
    pub(super) fn wait_for_room(&self) {
        drop(self.queue.wait_while(|state| state.waiting > MOST));
    }

    pub(super) fn flush(&self) {
        let works = |state: &State| !state.order.is_empty() || state.busy.is_some();
        drop(self.queue.wait_while(works));
    }

    /// Whether a copy of this manifest waits or is being made.
    pub(super) fn is_late(&self, name: &ManifestName) -> bool {
        let state = self.queue.state();
        state.puts.contains_key(name) || state.busy.as_ref() == Some(name)
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        self.queue.state().closing = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    /// A manifest that is put again is copied once, after the chunks of all puts.
    fn add(&mut self, name: &ManifestName, chunks: Vec<ChunkHash>) {
        self.waiting += chunks.len();
        if let Some(before) = self.puts.get_mut(name) {
            return before.extend(chunks);
        }
        self.waiting += 1;
        self.order.push_back(name.clone());
        self.puts.insert(name.clone(), chunks);
    }

    fn next(&mut self) -> Option<(ManifestName, Vec<ChunkHash>)> {
        let name = self.order.pop_front()?;
        let chunks = self.puts.remove(&name)?;
        self.waiting -= 1 + chunks.len();
        self.busy = Some(name.clone());
        Some((name, chunks))
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, until: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.state(), |state| until(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what is put until there will be no more. Once that is known, a tier that refuses a copy gets no others: closing
    /// the store waits for work, and not for a server that is away.
    fn work(&self, tiers: &[Tier], authority: usize) {
        let (from, below) = tiers.split_at(authority + 1);
        let mut below: Vec<&Tier> = below.iter().collect();
        while !below.is_empty() {
            let mut state = self.wait_while(|state| state.order.is_empty() && !state.closing);
            let Some((name, chunks)) = state.next() else {
                return;
            };
            drop(state);
            below.retain(|tier| copy(from, tier, &name, &chunks) || !self.state().closing);
            self.state().busy = None;
            self.changed.notify_all();
        }
    }
}

/// Puts chunks, and then what the authority, the last of `from`, has of a manifest by now: whoever changes it waits meanwhile,
/// so that it is not put after it was deleted. What was put later than its chunks here waits in the queue again with its own.
/// Whether the tier has what it should have.
fn copy(from: &[Tier], to: &Tier, name: &ManifestName, chunks: &[ChunkHash]) -> bool {
    let copied = chunks.iter().all(|hash| copy_chunk(from, to, hash));
    let _held = hold([name].into_iter());
    match from.last().map(|tier| tier.store.get_manifest(name)) {
        Some(Ok(Some(data))) if copied => to.copy_manifests(&[(name.clone(), data)]),
        // It was deleted, here and below.
        Some(Ok(None)) => true,
        // What is there is an older one.
        _ => {
            to.count(|stats| &mut stats.skipped, 1);
            to.drop_manifest(name);
            false
        }
    }
}

fn copy_chunk(from: &[Tier], to: &Tier, hash: &ChunkHash) -> bool {
    let mut tiers = from.iter();
    let there = tiers.find_map(|tier| tier.store.get_chunk(hash).ok().flatten());
    there.is_some_and(|data| to.copy_chunk(hash, &data).is_some())
}
