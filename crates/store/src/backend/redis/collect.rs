//! Removal of chunks without references, while other clients save.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::reply::{Reply, unexpected};
use super::scan::{Found, Size, chunk_of, name_of};
use super::{RedisStore, keys};
use crate::backend::kept::Kept;
use crate::backend::{CollectOptions, Collected, Progress, is_leftover};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The number of chunks in one script. The server does nothing else while a script runs.
const CHUNKS_PER_SCRIPT: usize = 500;

pub(super) fn collect(
    store: &RedisStore,
    options: &CollectOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Collected, StoreError> {
    // List chunks before manifests: a chunk that is put later is not considered at all.
    let chunks = store.list(keys::CHUNK, Size::Memory, chunk_of, &mut |_| {})?;
    if options.grace > Duration::ZERO && chunks.iter().any(|chunk| chunk.known.idle.is_none()) {
        return Err(StoreError::Unsupported {
            what: "collecting with a grace period",
            why: "a server with an LFU maxmemory-policy does not say when a key was used".into(),
        });
    }
    let mut run = Run {
        store,
        options,
        progress,
        generation: generation(store)?,
        began: Instant::now(),
        collected: Collected::default(),
    };
    let kept = run.keep(&chunks)?;
    run.remove(&chunks, &kept)?;
    Ok(run.collected)
}

struct Run<'a> {
    store: &'a RedisStore,
    options: &'a CollectOptions,
    progress: &'a mut dyn FnMut(Progress),
    /// The generation before the manifests were listed.
    generation: Vec<u8>,
    began: Instant,
    collected: Collected,
}

#[derive(Clone, Copy)]
enum Unless<'a> {
    Used,
    /// It was put again: its value no longer begins with these bytes.
    PutSince(&'a [u8]),
    /// It was used within the grace period. Applies to leftovers.
    InGrace,
}

impl Run<'_> {
    /// Evicts manifests down to the cap, and returns what the others refer to.
    fn keep(&mut self, chunks: &[Found<ChunkHash>]) -> Result<Kept, StoreError> {
        let mut manifests = self.store.list(keys::MANIFEST, Size::Memory, name_of, &mut |_| {})?;
        // Most recently used first. Those after the cap is exceeded are evicted.
        manifests.sort_by_key(|manifest| manifest.known.idle.unwrap_or(Duration::MAX));
        let sizes = chunks.iter().map(|chunk| (chunk.what, chunk.known.bytes));
        let mut kept = Kept::new(sizes, self.options.cap);
        let mut over = false;
        for (at, manifest) in manifests.iter().enumerate() {
            if is_leftover(&manifest.what) && self.evict(manifest, Unless::InGrace)? {
                continue;
            }
            if !over || !self.evict(manifest, Unless::Used)? {
                // Check before reading it, since the read may count as a use.
                let unused = !over && self.options.cap.is_some() && self.is_unused(manifest)?;
                let name = std::slice::from_ref(&manifest.what);
                // A damaged manifest is an error, because its references are unknown.
                let stored = self.store.fetcher.manifests_quietly(name)?.pop().flatten();
                if let Some(stored) = stored
                    && !kept.keep(&stored.recorded, manifest.known.bytes, over)
                {
                    over = true;
                    if !unused || !self.evict(manifest, Unless::PutSince(&stored.identity))? {
                        self.keep_anyway(manifest, &mut kept)?;
                    }
                }
            }
            (self.progress)(Progress { step: "reading manifests", done: at as u64 + 1, total: manifests.len() as u64 });
        }
        Ok(kept)
    }

    /// Keeps a manifest that was used while it was about to be evicted. It may have been replaced, so it is read again.
    fn keep_anyway(&self, manifest: &Found<String>, kept: &mut Kept) -> Result<(), StoreError> {
        let name = std::slice::from_ref(&manifest.what);
        let stored = self.store.fetcher.manifests_quietly(name)?.pop().flatten();
        if let Some(stored) = stored {
            kept.keep(&stored.recorded, manifest.known.bytes, true);
        }
        Ok(())
    }

    /// Returns the idle time, in seconds, that shows that a manifest was not used since this collection began. Idle
    /// times are differences of whole seconds, so each end may be off by almost a second. A server without use times
    /// may be collected only while no client saves.
    fn unused(&self, manifest: &Found<String>) -> u64 {
        match manifest.known.idle {
            Some(_) => self.began.elapsed().as_secs() + 2,
            None => 0,
        }
    }

    fn is_unused(&self, manifest: &Found<String>) -> Result<bool, StoreError> {
        let unused = self.unused(manifest);
        if unused == 0 {
            return Ok(true);
        }
        let key = keys::manifest(&manifest.what);
        match self.store.pool.call(&[b"OBJECT", b"IDLETIME", &key]) {
            Ok(Reply::Int(idle)) => Ok(u64::try_from(idle).is_ok_and(|idle| idle >= unused)),
            Ok(Reply::Nothing) => Ok(false),
            Ok(other) => Err(unexpected(&other)),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| failure.during(format!("look at manifest {:?}", manifest.what)))
    }

    fn grace(&self) -> u64 {
        let seconds = self.options.grace.as_nanos().div_ceil(1_000_000_000);
        u64::try_from(seconds).unwrap_or(u64::MAX)
    }

    /// Removes a manifest, unless the condition holds. Returns whether it was removed.
    fn evict(&mut self, manifest: &Found<String>, unless: Unless<'_>) -> Result<bool, StoreError> {
        let (unused, identity) = match unless {
            Unless::Used => (self.unused(manifest), &[][..]),
            Unless::PutSince(identity) => (0, identity),
            Unless::InGrace => (self.grace(), &[][..]),
        };
        let leftover = matches!(unless, Unless::InGrace);
        if leftover && self.options.dry_run && manifest.known.idle.is_some_and(|idle| idle.as_secs() < unused) {
            return Ok(false);
        }
        if !self.options.dry_run {
            let keys = [keys::REMOVED.into(), keys::manifest(&manifest.what)];
            let values = [unused.to_string().into_bytes(), identity.to_vec(), flag(leftover)];
            let reply = self
                .store
                .script(keys::DELETE, &keys, &values)
                .map_err(|failure| failure.during(format!("evict manifest {:?}", manifest.what)))?;
            if reply != Reply::Int(1) {
                return Ok(false);
            }
        }
        match leftover {
            true => self.collected.leftovers += 1,
            false => self.collected.manifests += 1,
        }
        self.collected.bytes += manifest.known.bytes;
        Ok(true)
    }

    fn remove(&mut self, chunks: &[Found<ChunkHash>], kept: &Kept) -> Result<(), StoreError> {
        let unreferred: Vec<Vec<u8>> =
            chunks.iter().filter(|chunk| !kept.refers(&chunk.what)).map(|chunk| keys::chunk(&chunk.what)).collect();
        if !self.options.dry_run {
            self.unmark(&unreferred)?;
        }
        let mut done = 0;
        for page in unreferred.chunks(CHUNKS_PER_SCRIPT) {
            let mut all = vec![keys::GENERATION.into(), keys::REMOVED.into(), keys::MARKS.into()];
            all.extend_from_slice(page);
            let grace = self.grace();
            let values = [
                self.generation.clone(),
                grace.to_string().into_bytes(),
                (self.began.elapsed().as_secs() + 2).to_string().into_bytes(),
                flag(self.options.dry_run),
                // In a dry run, assume the removal that a real run would have recorded by now.
                flag(self.options.dry_run && self.collected.manifests > 0 && grace > 0),
            ];
            let action = "remove chunks from redis";
            let reply = self.store.script(keys::COLLECT, &all, &values).map_err(|failure| failure.during(action))?;
            let counts: Option<Vec<u64>> = match &reply {
                Reply::Array(items) => items
                    .iter()
                    .map(|item| match item {
                        Reply::Int(count) => u64::try_from(*count).ok(),
                        _ => None,
                    })
                    .collect(),
                _ => None,
            };
            let Some(&[gone, bytes, kept]) = counts.as_deref() else {
                return Err(unexpected(&reply).during(action));
            };
            self.collected.chunks += gone;
            self.collected.bytes += bytes;
            self.collected.in_grace += kept;
            done += page.len() as u64;
            (self.progress)(Progress { step: "removing chunks", done, total: unreferred.len() as u64 });
        }
        Ok(())
    }

    /// Removes the marks of chunks that have references again or no longer exist.
    fn unmark(&self, unreferred: &[Vec<u8>]) -> Result<(), StoreError> {
        let unreferred: HashSet<&[u8]> = unreferred.iter().map(Vec::as_slice).collect();
        let failed = |failure: super::failure::Failure| failure.during("read the marks in redis");
        let mut cursor = b"0".to_vec();
        loop {
            let reply = self
                .store
                .pool
                .call(&[b"ZSCAN", keys::MARKS.as_bytes(), &cursor, b"COUNT", b"1000"])
                .map_err(failed)?;
            let Reply::Array(items) = reply else {
                return Err(failed(unexpected(&reply)));
            };
            let Ok([Reply::Bulk(next), Reply::Array(items)]) = <[Reply; 2]>::try_from(items) else {
                return Err(failed(unexpected(&Reply::Array(Vec::new()))));
            };
            let stale: Vec<&[u8]> = items
                .iter()
                .step_by(2)
                .filter_map(|item| match item {
                    Reply::Bulk(key) => Some(key.as_slice()),
                    _ => None,
                })
                .filter(|key| !unreferred.contains(key))
                .collect();
            if !stale.is_empty() {
                let mut command = vec![&b"ZREM"[..], keys::MARKS.as_bytes()];
                command.extend(stale);
                self.store.pool.call(&command).map_err(failed)?;
            }
            if next == b"0" {
                return Ok(());
            }
            cursor = next;
        }
    }
}

fn flag(set: bool) -> Vec<u8> {
    vec![if set { b'1' } else { b'0' }]
}

fn generation(store: &RedisStore) -> Result<Vec<u8>, StoreError> {
    let failed = |failure: super::failure::Failure| failure.during("collect on redis");
    match store.pool.call(&[b"GET", keys::GENERATION.as_bytes()]).map_err(failed)? {
        Reply::Bulk(generation) => Ok(generation),
        Reply::Nothing => Ok(b"0".to_vec()),
        other => Err(failed(unexpected(&other))),
    }
}
