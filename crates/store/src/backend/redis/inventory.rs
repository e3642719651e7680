//! Listing and verifying. `collect.rs` collects.
//!
//! Last-used times are the server's (`OBJECT IDLETIME`, in whole seconds). A server with an LFU `maxmemory-policy` has
//! none: entries then have no time, and collecting needs a grace period of zero, which is safe only while no client
//! saves. Redis 7.2 and later, and Valkey, do not count these reads as uses (`CLIENT NO-TOUCH`). On older servers,
//! listing chunks and verifying make everything recently used, and a collection does so to the manifests that it reads.
//!
//! A listing shows the manifests under the handle's prefix, named as the handle names them. Chunks, usage and
//! collections cover the whole database. A manifest whose full name is longer than [`ManifestName::MAX`] is listed only
//! by a handle whose prefix makes it short enough.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;

use super::failure::Failure;
use super::reply::Reply;
use super::scan::{Found, Size, chunk_of, name_of};
use super::{RedisStore, collect, keys};
use crate::backend::{ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

const READ_BYTES: u64 = 32 << 20;

impl Inventory for RedisStore {
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let prefix = &self.pool.connector().address().prefix;
        self.scan(keys::MANIFEST, Size::Length, &mut |found| {
            let name = std::str::from_utf8(&found.what)
                .ok()
                .and_then(|whole| whole.strip_prefix(prefix.as_str()))
                .and_then(|name| ManifestName::new(name).ok());
            match name {
                None => Ok(()),
                Some(name) => {
                    visit(ManifestEntry { name, bytes: found.known.value_bytes(), last_used: found.known.last_used() })
                }
            }
        })
    }

    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let names: Vec<String> = names.iter().map(|name| self.whole_name(name)).collect();
        let found = self.fetcher.manifests_quietly(&names)?.into_iter();
        Ok(found.map(|found| Some(found?.recorded.data)).collect())
    }

    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.scan(keys::CHUNK, Size::Length, &mut |found| match chunk_of(&found.what) {
            None => Ok(()),
            Some(hash) => {
                visit(ChunkEntry { hash, bytes: found.known.value_bytes(), last_used: found.known.last_used() })
            }
        })
    }

    /// Counts the memory of each key, which a server before 7.2 reports without counting a use.
    fn in_use(&self, within: Duration) -> Result<u64, StoreError> {
        let mut bytes: u64 = 0;
        for start in [keys::MANIFEST, keys::CHUNK] {
            self.scan(start, Size::Memory, &mut |found| {
                if found.known.idle.is_some_and(|idle| idle < within) {
                    bytes = bytes.saturating_add(found.known.bytes);
                }
                Ok(())
            })?;
        }
        Ok(bytes)
    }

    /// The total is the server's memory for the store's keys, and the cap is its `maxmemory`.
    fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        for size in [Size::Length, Size::Memory] {
            for start in [keys::MANIFEST, keys::CHUNK] {
                self.scan(start, size, &mut |found| {
                    let (count, bytes) = match start {
                        keys::CHUNK => (&mut usage.chunks, &mut usage.chunk_bytes),
                        _ => (&mut usage.manifests, &mut usage.manifest_bytes),
                    };
                    match size {
                        Size::Length => {
                            *count += 1;
                            *bytes = bytes.saturating_add(found.known.value_bytes());
                        }
                        Size::Memory => {
                            usage.total_bytes = usage.total_bytes.saturating_add(found.known.bytes);
                        }
                    }
                    Ok(())
                })?;
            }
        }
        usage.cap = self.max_memory()?;
        Ok(usage)
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError> {
        let chunks = self.list(keys::CHUNK, Size::Length, chunk_of, fault)?;
        let manifests = self.list(keys::MANIFEST, Size::Length, name_of, fault)?;
        // Every save increments this key. It may be evicted like any other, so its absence alone proves nothing.
        let saved = self.pool.call(&[b"EXISTS", keys::GENERATION.as_bytes()]);
        let saved = saved.map_err(|failure| failure.during("verify redis"))? != Reply::Int(0);
        if !saved && chunks.is_empty() && manifests.is_empty() {
            fault(Fault {
                what: "the database".into(),
                how: "it holds nothing, nor says that anything was ever saved in it: it was emptied, its server \
                      restarted without its data, or nothing was saved yet"
                    .into(),
            });
        }
        read_all("reading chunks", &chunks, progress, fault, |hashes| self.fetcher.chunks_quietly(hashes).map(drop))?;
        let there: HashSet<ChunkHash> = chunks.iter().map(|chunk| chunk.what).collect();
        let mut missing: HashMap<ChunkHash, String> = HashMap::new();
        read_all("reading manifests", &manifests, progress, fault, |names| {
            let found = self.fetcher.manifests_quietly(names)?;
            for (name, found) in names.iter().zip(found) {
                let needed = found.iter().flat_map(|found| found.recorded.references());
                let needed = needed.filter(|hash| !there.contains(hash));
                missing.extend(needed.map(|hash| (hash, name.clone())));
            }
            Ok(())
        })?;
        for (hash, name) in missing {
            // The chunk may have been put, or the manifest removed, meanwhile.
            if self.fetcher.chunks_quietly(&[hash])?[0].is_none()
                && let Some(found) = &self.fetcher.manifests_quietly(std::slice::from_ref(&name))?[0]
                && found.recorded.references().any(|needed| needed == hash)
            {
                fault(Fault::missing(&hash, &name));
            }
        }
        Ok(())
    }

    /// A cap limits the server's memory ([`Usage::total_bytes`]) and is reached by evicting manifests. The chunks that
    /// only these referred to are removed by a collection after the grace period.
    fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError> {
        collect::collect(self, options, progress)
    }
}

impl RedisStore {
    fn max_memory(&self) -> Result<Option<u64>, StoreError> {
        match self.pool.call(&[b"INFO", b"memory"]) {
            Ok(Reply::Bulk(info)) => Ok(String::from_utf8_lossy(&info)
                .lines()
                .find_map(|line| line.strip_prefix("maxmemory:")?.trim().parse().ok())
                .filter(|&cap| cap > 0)),
            // The user may lack the permission.
            Ok(_) | Err(Failure::Refused(_)) => Ok(None),
            Err(failure) => Err(failure.during("ask redis for its maxmemory")),
        }
    }
}

fn read_all<T: Clone>(
    step: &'static str,
    all: &[Found<T>],
    progress: &mut dyn FnMut(Progress),
    fault: &mut dyn FnMut(Fault),
    mut read: impl FnMut(&[T]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let sum = |found: &[Found<T>]| {
        let sizes = found.iter().map(|found| found.known.bytes);
        sizes.fold(0, u64::saturating_add)
    };
    let total = sum(all);
    let mut done = 0_u64;
    let mut left = all;
    while !left.is_empty() {
        let mut bytes = 0;
        let together = left
            .iter()
            .take_while(|found| {
                bytes = found.known.bytes.saturating_add(bytes);
                bytes <= READ_BYTES
            })
            .count()
            .max(1);
        let (now, later) = left.split_at(together);
        let whats: Vec<T> = now.iter().map(|found| found.what.clone()).collect();
        if read(&whats).is_err() {
            // A value is damaged or the server is gone. Read one value at a time to find out.
            for what in &whats {
                match read(std::slice::from_ref(what)) {
                    Ok(()) => {}
                    Err(StoreError::Damaged { what, how }) => fault(Fault { what, how }),
                    Err(error) => return Err(error),
                }
            }
        }
        done = done.saturating_add(sum(now));
        progress(Progress { step, done, total });
        left = later;
    }
    Ok(())
}
