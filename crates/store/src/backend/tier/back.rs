//! Copies for the tiers below the authority, which are made later.
//!
//! The queue has names and hashes; their bytes are read from the tiers above when their turn comes. So what a
//! crash loses are copies, and what waits takes little memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use super::names::{copy_name, hold};
use super::one::Tier;
use crate::backend::guard::Guard;
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// How many manifests and chunks may wait, 4 MiB or so. Puts of manifests wait while there are more.
const MOST: usize = 65_536;

/// How often a refused copy is tried again: a tier that is back takes it at once, and one that never will is not asked for ever.
const TRIES: u32 = 8;

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
    puts: HashMap<ManifestName, Late>,
    /// The one that is being copied.
    busy: Option<ManifestName>,
    waiting: usize,
    /// What a tier has refused, to be tried again once something else was copied.
    refused: Vec<(ManifestName, Late)>,
    closing: bool,
}

/// A manifest that is to be copied.
#[derive(Debug)]
struct Late {
    /// Those that are put before it.
    chunks: Vec<ChunkHash>,
    /// Of its bytes: what was put since has other chunks, and is copied with these.
    digest: blake3::Hash,
    /// How often a tier has refused it.
    refusals: u32,
}

impl Back {
    pub(super) fn start(tiers: Arc<Vec<Tier>>, authority: usize) -> Result<Self, StoreError> {
        let queue = Arc::new(Queue::default());
        let shared = queue.clone();
        let work = move || shared.work(&tiers, authority);
        let thread = thread::Builder::new().name("kv-tier-back".into()).spawn(work);
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
    pub(super) fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        let needed = self.guard.needed(manifests.iter().map(|(_, data)| &data[..]))?;
        // With the first one all chunks are there for the others, too.
        let mut chunks = needed.chunks.clone();
        let mut state = self.queue.state();
        for (name, data) in manifests {
            let late = Late { chunks: std::mem::take(&mut chunks), digest: blake3::hash(data), refusals: 0 };
            state.add(name.clone(), late);
        }
        drop(state);
        self.queue.changed.notify_all();
        self.guard.published(&needed);
        Ok(())
    }

    /// Blocks while more than [`MOST`] manifests and chunks wait.
    pub(super) fn wait_for_room(&self) {
        drop(self.queue.wait_while(|state| state.waiting > MOST));
    }

    pub(super) fn flush(&self) {
        let works = |state: &State| !state.order.is_empty() || state.busy.is_some();
        drop(self.queue.wait_while(works));
    }

    /// Waits until no copy of this manifest waits or is being made, but not for longer than this.
    pub(super) fn wait_for(&self, name: &ManifestName, limit: Duration) {
        let is_late = |state: &mut State| state.puts.contains_key(name) || state.busy.as_ref() == Some(name);
        let state = self.queue.state();
        let waited = self.queue.changed.wait_timeout_while(state, limit, is_late);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
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
    /// Adds a put. A manifest that is put again is copied once, after the chunks of all puts.
    fn add(&mut self, name: ManifestName, late: Late) {
        self.waiting += late.chunks.len();
        if let Some(before) = self.puts.get_mut(&name) {
            before.chunks.extend(late.chunks);
            before.digest = late.digest;
            before.refusals = late.refusals;
            return;
        }
        self.waiting += 1;
        self.order.push_back(name.clone());
        self.puts.insert(name, late);
    }

    fn next(&mut self) -> Option<(ManifestName, Late)> {
        let name = self.order.pop_front()?;
        let late = self.puts.remove(&name)?;
        self.waiting -= 1 + late.chunks.len();
        self.busy = Some(name.clone());
        Some((name, late))
    }

    /// Notes what came of a copy: once one succeeds, those that were refused are tried again, but not for ever.
    fn done(&mut self, name: ManifestName, mut late: Late, was_refused: bool) {
        self.busy = None;
        if !was_refused {
            for (name, late) in std::mem::take(&mut self.refused) {
                // One that was put since has its own chunks, and needs those of before, too.
                match self.puts.get_mut(&name) {
                    Some(newer) => {
                        self.waiting += late.chunks.len();
                        newer.chunks.extend(late.chunks);
                    }
                    None => self.add(name, late),
                }
            }
        } else if late.refusals < TRIES && self.refused.len() < MOST {
            late.refusals += 1;
            self.refused.push((name, late));
        }
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
        let (from, all) = tiers.split_at(authority + 1);
        let mut below: Vec<&Tier> = all.iter().collect();
        while !below.is_empty() {
            let mut state = self.wait_while(|state| state.order.is_empty() && !state.closing);
            let Some((name, late)) = state.next() else {
                return;
            };
            drop(state);
            let copied = copy(from, all, &below, (&name, &late));
            let mut state = self.state();
            let mut each = copied.iter();
            below.retain(|_| each.next() == Some(&true) || !state.closing);
            state.done(name, late, copied.contains(&false));
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// Puts a manifest of the authority, the last of `from`, into tiers `below`, after its chunks; those between that and the
/// last tier get a copy. Once `all` of them have it, it is not pending any more. Returns which of `below` have refused
/// nothing.
fn copy(from: &[Tier], all: &[Tier], below: &[&Tier], (name, late): (&ManifestName, &Late)) -> Vec<bool> {
    let with_chunks = |tier: &&Tier| late.chunks.iter().all(|hash| copy_chunk(from, tier, hash));
    let mut copied: Vec<bool> = below.iter().map(with_chunks).collect();
    let authority = &from[from.len() - 1];
    // It is not put after it was deleted.
    let _held = hold(name);
    let pending = match authority.store.manifest_revision(name) {
        // A plugin cannot tell puts apart. What it has stays pending: removing it might remove one that was put since.
        Err(StoreError::Unsupported { .. }) => {
            authority.store.get_manifest(name).map(|there| there.map(|data| (data, None)))
        }
        other => other.map(|there| there.map(|(data, revision)| (data, Some(revision)))),
    };
    let (data, revision) = match pending {
        Ok(Some((data, revision))) if blake3::hash(&data) == late.digest => (data, revision),
        // It was deleted, here and below, or put again: then it is copied with the chunks of that put.
        Ok(_) => return vec![true; below.len()],
        Err(_) => return vec![false; below.len()],
    };
    let copy = copy_name(name);
    for (tier, copied) in below.iter().zip(&mut copied) {
        let is_last = all.last().is_some_and(|last| std::ptr::eq(*tier, last));
        let there = match (is_last, &copy) {
            (true, _) => Some(name),
            (false, copy) => copy.as_ref(),
        };
        let Some(there) = there else { continue };
        *copied = *copied && tier.copy_manifests(&[(there.clone(), data.clone())]);
        if !*copied {
            tier.count(|stats| &mut stats.skipped, 1);
            // An older one, which would be read if the authority lost this one.
            tier.drop_manifest(there);
        }
    }
    if let Some(revision) = revision.filter(|_| below.len() == all.len() && !copied.contains(&false)) {
        if let Some(copy) = copy {
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
