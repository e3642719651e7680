//! Copies for the tiers below the authority, which are made later.
//!
//! The queue has names and hashes; their bytes are read from the tiers above when their turn comes. So what a
//! crash loses are copies, and what waits takes little memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;

use super::names::{copy_name, hold};
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

    /// Adds manifests that the authority has.
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

    /// Waits while too much waits.
    pub(super) fn wait_for_room(&self) {
        drop(self.queue.wait_while(|state| state.waiting > MOST));
    }

    pub(super) fn flush(&self) {
        let works = |state: &State| !state.order.is_empty() || state.busy.is_some();
        drop(self.queue.wait_while(works));
    }

    /// Waits until no copy of this manifest waits or is being made.
    pub(super) fn wait_for(&self, name: &ManifestName) {
        let is_late =
            |state: &State| state.puts.contains_key(name) || state.busy.as_ref() == Some(name);
        drop(self.queue.wait_while(is_late));
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
            let mut copied = copy(from, &below, &name, &chunks).into_iter();
            let closing = self.state().closing;
            below.retain(|_| copied.next() == Some(true) || !closing);
            self.state().busy = None;
            self.changed.notify_all();
        }
    }
}

/// Puts chunks below, and then what the authority, the last of `from`, has of a manifest by now. What was put later than its
/// chunks here waits in the queue again with its own. Once all tiers below have it, it is not pending any more. Which of
/// them have what they should have.
fn copy(from: &[Tier], below: &[&Tier], name: &ManifestName, chunks: &[ChunkHash]) -> Vec<bool> {
    let with_chunks = |tier: &&Tier| chunks.iter().all(|hash| copy_chunk(from, tier, hash));
    let mut copied: Vec<bool> = below.iter().map(with_chunks).collect();
    let authority = &from[from.len() - 1];
    // It is not put after it was deleted.
    let _held = hold(name);
    let pending = match authority.store.manifest_revision(name) {
        // A plugin cannot tell puts apart. What it has stays pending: removing it might remove one that was put since.
        Err(StoreError::Unsupported { .. }) => authority
            .store
            .get_manifest(name)
            .map(|there| there.map(|data| (data, None))),
        other => other.map(|there| there.map(|(data, revision)| (data, Some(revision)))),
    };
    let Ok(Some((data, revision))) = pending else {
        // It was deleted, here and below; or what is there cannot be read, and the next put tries again.
        return vec![pending.is_ok(); below.len()];
    };
    for (tier, copied) in below.iter().zip(&mut copied) {
        *copied = *copied && tier.copy_manifests(&[(name.clone(), data.clone())]);
        if !*copied {
            tier.count(|stats| &mut stats.skipped, 1);
            // An older one, which would be read if the authority lost this one.
            tier.drop_manifest(name);
        }
    }
    if let Some(revision) = revision.filter(|_| copied.iter().all(|copied| *copied)) {
        if let Some(copy) = copy_name(name) {
            authority.copy_manifests(&[(copy, data)]);
        }
        if authority.store.delete_revision(name, &revision).is_err() {
            authority.count(|stats| &mut stats.failures, 1);
        }
    }
    copied
}

fn copy_chunk(from: &[Tier], to: &Tier, hash: &ChunkHash) -> bool {
    let mut tiers = from.iter();
    let there = tiers.find_map(|tier| tier.store.get_chunk(hash).ok().flatten());
    there.is_some_and(|data| to.copy_chunk(hash, &data).is_some())
}
