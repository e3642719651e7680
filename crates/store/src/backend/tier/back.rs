//! Write-back: copies manifests and chunks to the tiers below the authority in the background.
//!
//! The queue holds names and hashes. The bytes are read from the tiers above when they are copied. So the queue takes
//! little memory, and a crash loses only copies.

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

/// The maximum number of queued manifests and chunks, about 4 MiB. Puts of manifests wait while there are more.
const MOST: usize = 65_536;

/// The number of retries of a refused copy, after which it is abandoned.
const TRIES: u32 = 8;

#[derive(Debug)]
pub(super) struct Back {
    queue: Arc<Queue>,
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
    /// The queued names, without duplicates.
    order: VecDeque<ManifestName>,
    puts: HashMap<ManifestName, QueuedCopy>,
    busy: Option<ManifestName>,
    waiting: usize,
    /// Copies that a tier refused. They are retried after another copy has succeeded.
    refused: Vec<(ManifestName, QueuedCopy)>,
    closing: bool,
}

#[derive(Debug)]
struct QueuedCopy {
    /// The chunks to copy before it.
    chunks: Vec<ChunkHash>,
    /// The digest of its bytes. If it was put again, it is copied with the chunks of the later put instead.
    digest: blake3::Hash,
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

    pub(super) fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        let needed = self.guard.needed(manifests.iter().map(|(_, data)| &data[..]))?;
        // The first manifest takes all chunks along, so the others need none.
        let mut chunks = needed.chunks.clone();
        let mut state = self.queue.state();
        for (name, data) in manifests {
            let queued = QueuedCopy { chunks: std::mem::take(&mut chunks), digest: blake3::hash(data), refusals: 0 };
            state.add(name.clone(), queued);
        }
        drop(state);
        self.queue.changed.notify_all();
        self.guard.published(&needed);
        Ok(())
    }

    pub(super) fn wait_for_room(&self) {
        drop(self.queue.wait_while(|state| state.waiting > MOST));
    }

    pub(super) fn flush(&self) {
        let works = |state: &State| !state.order.is_empty() || state.busy.is_some();
        drop(self.queue.wait_while(works));
    }

    /// Waits until no copy of this manifest is queued or being made, up to `limit`.
    pub(super) fn wait_for(&self, name: &ManifestName, limit: Duration) {
        let is_queued = |state: &mut State| state.puts.contains_key(name) || state.busy.as_ref() == Some(name);
        let state = self.queue.state();
        let waited = self.queue.changed.wait_timeout_while(state, limit, is_queued);
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
    /// Adds a put. A manifest that is queued already is copied once, with the chunks of all its puts.
    fn add(&mut self, name: ManifestName, queued: QueuedCopy) {
        self.waiting += queued.chunks.len();
        if let Some(before) = self.puts.get_mut(&name) {
            before.chunks.extend(queued.chunks);
            before.digest = queued.digest;
            before.refusals = queued.refusals;
            return;
        }
        self.waiting += 1;
        self.order.push_back(name.clone());
        self.puts.insert(name, queued);
    }

    fn next(&mut self) -> Option<(ManifestName, QueuedCopy)> {
        let name = self.order.pop_front()?;
        let queued = self.puts.remove(&name)?;
        self.waiting -= 1 + queued.chunks.len();
        self.busy = Some(name.clone());
        Some((name, queued))
    }

    /// Records the outcome of a copy. After a success, refused copies are queued again, up to [`TRIES`] times each.
    fn done(&mut self, name: ManifestName, mut queued: QueuedCopy, was_refused: bool) {
        self.busy = None;
        if !was_refused {
            for (name, queued) in std::mem::take(&mut self.refused) {
                // A newer put has its own chunks, and needs the earlier ones too.
                match self.puts.get_mut(&name) {
                    Some(newer) => {
                        self.waiting += queued.chunks.len();
                        newer.chunks.extend(queued.chunks);
                    }
                    None => self.add(name, queued),
                }
            }
        } else if queued.refusals < TRIES && self.refused.len() < MOST {
            queued.refusals += 1;
            self.refused.push((name, queued));
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

    /// Copies what is queued until the store is closed. While it is closing, a tier that refuses a copy gets no others,
    /// so that closing does not wait for a server that is down.
    fn work(&self, tiers: &[Tier], authority: usize) {
        let (from, all) = tiers.split_at(authority + 1);
        let mut lower: Vec<&Tier> = all.iter().collect();
        while !lower.is_empty() {
            let mut state = self.wait_while(|state| state.order.is_empty() && !state.closing);
            let Some((name, queued)) = state.next() else {
                return;
            };
            drop(state);
            let copied = copy(from, all, &lower, (&name, &queued));
            let mut state = self.state();
            let mut each = copied.iter();
            lower.retain(|_| each.next() == Some(&true) || !state.closing);
            state.done(name, queued, copied.contains(&false));
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// Puts a manifest of the authority (the last of `from`) into the tiers `lower`, after its chunks. Tiers between the
/// authority and the last one get it under the name of a copy. Once all lower tiers have it, the manifest is no longer
/// pending. Returns for each of `lower` whether it refused nothing.
fn copy(from: &[Tier], all: &[Tier], lower: &[&Tier], (name, queued): (&ManifestName, &QueuedCopy)) -> Vec<bool> {
    let with_chunks = |tier: &&Tier| queued.chunks.iter().all(|hash| copy_chunk(from, tier, hash));
    let mut copied: Vec<bool> = lower.iter().map(with_chunks).collect();
    let authority = &from[from.len() - 1];
    // Keep it from being deleted meanwhile, because this copy would bring it back.
    let _held = hold(name);
    let pending = match authority.store.manifest_revision(name) {
        // A plugin cannot tell puts apart. Its manifest stays pending, since removing it might remove a newer one.
        Err(StoreError::Unsupported { .. }) => {
            authority.store.get_manifest(name).map(|there| there.map(|data| (data, None)))
        }
        other => other.map(|there| there.map(|(data, revision)| (data, Some(revision)))),
    };
    let (data, revision) = match pending {
        Ok(Some((data, revision))) if blake3::hash(&data) == queued.digest => (data, revision),
        // It was deleted everywhere, or put again. Then it is copied with the chunks of that put.
        Ok(_) => return vec![true; lower.len()],
        Err(_) => return vec![false; lower.len()],
    };
    let copy = copy_name(name);
    for (tier, copied) in lower.iter().zip(&mut copied) {
        let is_last = all.last().is_some_and(|last| std::ptr::eq(*tier, last));
        let there = match (is_last, &copy) {
            (true, _) => Some(name),
            (false, copy) => copy.as_ref(),
        };
        let Some(there) = there else { continue };
        *copied = *copied && tier.copy_manifests(&[(there.clone(), data.clone())]);
        if !*copied {
            tier.count(|stats| &mut stats.skipped, 1);
            // Remove an older copy, which would be read if the authority lost its manifest.
            tier.drop_manifest(there);
        }
    }
    if let Some(revision) = revision.filter(|_| lower.len() == all.len() && !copied.contains(&false)) {
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
