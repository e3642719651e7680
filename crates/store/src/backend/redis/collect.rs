//! Removing chunks that no manifest refers to, while others save.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::connection::unexpected;
use super::inventory::{Found, Size, chunk_of, name_of};
use super::reply::Reply;
use super::{RedisStore, keys};
use crate::backend::{CollectOptions, Collected, Progress, References};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// Chunks of one script: the server works on nothing else in the meantime.
const TOGETHER: usize = 500;

pub(super) fn collect(
    store: &RedisStore,
    options: &CollectOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Collected, StoreError> {
    // Chunks before manifests: a chunk put from here on is not looked at.
    let chunks = store.list(keys::CHUNK, Size::Memory, chunk_of, &mut |_| {})?;
    if options.grace > Duration::ZERO && chunks.iter().any(|chunk| chunk.idle.is_none()) {
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
    let referred = run.keep(&chunks)?;
    run.remove(&chunks, &referred)?;
    Ok(run.collected)
}

struct Run<'a> {
    store: &'a RedisStore,
    options: &'a CollectOptions,
    progress: &'a mut dyn FnMut(Progress),
    /// Before the manifests were listed.
    generation: Vec<u8>,
    began: Instant,
    collected: Collected,
}

impl Run<'_> {
    /// Evicts manifests down to the cap and answers which chunks the others refer to.
    fn keep(&mut self, chunks: &[Found<ChunkHash>]) -> Result<HashSet<ChunkHash>, StoreError> {
        let mut manifests = self
            .store
            .list(keys::MANIFEST, Size::Memory, name_of, &mut |_| {})?;
        // The most recently used first. From the one that exceeds the cap on, they go.
        manifests.sort_by_key(|manifest| manifest.idle.unwrap_or(Duration::MAX));
        let size: HashMap<ChunkHash, u64> = match self.options.cap {
            Some(_) => chunks
                .iter()
                .map(|chunk| (chunk.what, chunk.bytes))
                .collect(),
            None => HashMap::new(),
        };
        let cap = self.options.cap.unwrap_or(u64::MAX);
        let mut references = References::new(chunks.iter().map(|chunk| chunk.what));
        let mut referred = HashSet::new();
        let mut held = 0_u64;
        let mut over = false;
        for (at, manifest) in manifests.iter().enumerate() {
            // One that was used while we were at it stays.
            let unused = self.began.elapsed().as_secs() + 1;
            if !over || !self.evict(manifest, unused)? {
                let name = std::slice::from_ref(&manifest.what);
                let bytes = match self.store.fetcher.manifests_quietly(name) {
                    Ok(mut values) => values.pop().flatten(),
                    // Also of one that is damaged: nobody knows what it refers to.
                    Err(error) => return Err(error),
                };
                references.scan(bytes.as_deref().unwrap_or_default());
                let new = references.take_new();
                let added = new.iter().filter_map(|hash| size.get(hash)).sum::<u64>();
                let after = held.saturating_add(manifest.bytes).saturating_add(added);
                over = over || after > cap;
                // Nothing asks whether this one was used: reading it may have been a use.
                if after <= cap || !self.evict(manifest, 0)? {
                    held = after;
                    referred.extend(new);
                }
            }
            (self.progress)(Progress {
                step: "reading manifests",
                done: at as u64 + 1,
                total: manifests.len() as u64,
            });
        }
        Ok(referred)
    }

    /// Removes a manifest that was not used for so many seconds. Answers whether it went.
    fn evict(&mut self, manifest: &Found<String>, unused: u64) -> Result<bool, StoreError> {
        if !self.options.dry_run {
            let keys = [keys::REMOVED.into(), keys::manifest(&manifest.what)];
            let unused = if manifest.idle.is_some() { unused } else { 0 };
            let reply = self
                .store
                .script(keys::DELETE, &keys, &[unused.to_string().into_bytes()])
                .map_err(|failure| failure.during(format!("evict manifest {:?}", manifest.what)))?;
            if reply != Reply::Int(1) {
                return Ok(false);
            }
        }
        self.collected.manifests += 1;
        self.collected.bytes += manifest.bytes;
        Ok(true)
    }

    fn remove(
        &mut self,
        chunks: &[Found<ChunkHash>],
        referred: &HashSet<ChunkHash>,
    ) -> Result<(), StoreError> {
        let unreferred: Vec<Vec<u8>> = chunks
            .iter()
            .filter(|chunk| !referred.contains(&chunk.what))
            .map(|chunk| keys::chunk(&chunk.what))
            .collect();
        if !self.options.dry_run {
            self.unmark(&unreferred)?;
        }
        let flag = |set: bool| if set { b"1".to_vec() } else { b"0".to_vec() };
        let mut done = 0;
        for page in unreferred.chunks(TOGETHER) {
            let mut all = vec![
                keys::GENERATION.into(),
                keys::REMOVED.into(),
                keys::MARKS.into(),
            ];
            all.extend_from_slice(page);
            // Idle times are rounded down, so both are rounded up.
            let grace = self.options.grace.as_nanos().div_ceil(1_000_000_000);
            let values = [
                self.generation.clone(),
                grace.to_string().into_bytes(),
                (self.began.elapsed().as_secs() + 1)
                    .to_string()
                    .into_bytes(),
                flag(self.options.dry_run),
                // What a real run would have noted by now.
                flag(self.options.dry_run && self.collected.manifests > 0 && grace > 0),
            ];
            let action = "remove chunks from redis";
            let reply = self
                .store
                .script(keys::COLLECT, &all, &values)
                .map_err(|failure| failure.during(action))?;
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
            (self.progress)(Progress {
                step: "removing chunks",
                done,
                total: unreferred.len() as u64,
            });
        }
        Ok(())
    }

    /// Forgets what earlier collections noted of chunks that are referred to again, or gone.
    fn unmark(&self, unreferred: &[Vec<u8>]) -> Result<(), StoreError> {
        let unreferred: HashSet<&[u8]> = unreferred.iter().map(Vec::as_slice).collect();
        let failed =
            |failure: super::connection::Failure| failure.during("read the marks in redis");
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

/// How many manifests were ever put.
fn generation(store: &RedisStore) -> Result<Vec<u8>, StoreError> {
    let failed = |failure: super::connection::Failure| failure.during("collect on redis");
    match store
        .pool
        .call(&[b"GET", keys::GENERATION.as_bytes()])
        .map_err(failed)?
    {
        Reply::Bulk(generation) => Ok(generation),
        Reply::Nothing => Ok(b"0".to_vec()),
        other => Err(failed(unexpected(&other))),
    }
}
