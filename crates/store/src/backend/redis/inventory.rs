//! Listing and verifying; `collect.rs` collects.
//!
//! Times of use are the server's (`OBJECT IDLETIME`, whole seconds). A server whose `maxmemory-policy` is one
//! of the LFU kind keeps none: then entries have no time, and collecting needs a grace period of zero, which
//! is safe only while nobody saves. Since Redis 7.2 and in Valkey, looking at a value here is no use of it
//! (`CLIENT NO-TOUCH`). Before, listing chunks or verifying makes everything recently used, and a collection
//! does so to the manifests it reads.
//!
//! A listing shows the manifests below the handle's prefix, named as the handle names them; chunks, usage and
//! collections are those of the whole database. A manifest whose whole name is longer than
//! [`ManifestName::MAX`] is listed only by a handle whose prefix makes it short enough.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::connection::{Failure, unexpected};
use super::reply::{self, Reply};
use super::{RedisStore, collect, keys};
use crate::backend::recorded::{FIXED, references_len};
use crate::backend::sealed::HEADER;
use crate::backend::{
    ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage,
};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// Keys of one page of a listing: the server works on nothing else in the meantime.
const PAGE: &[u8] = b"1000";

/// Bytes of values that are read together.
const READ_BYTES: u64 = 32 << 20;

/// A key of ours without what all begin with, and what the server knows of it.
#[derive(Debug)]
pub(super) struct Found<T> {
    pub(super) what: T,
    pub(super) known: Known,
}

/// What the server knows of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// As the listing asked: of the whole value, or of memory.
    pub(super) bytes: u64,
    /// How many bytes of the value are in front of what was put, if the listing asked for its length.
    front: u64,
    /// Since the last use.
    pub(super) idle: Option<Duration>,
}

impl Known {
    fn last_used(&self) -> Option<SystemTime> {
        SystemTime::now().checked_sub(self.idle?)
    }

    /// Of what was put.
    fn value_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.front)
    }
}

/// What a listing says of the size of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// The length of the value.
    Length,
    /// What it takes up in the server's memory. Asking is no use, on any server.
    Memory,
}

impl Inventory for RedisStore {
    fn manifests(
        &self,
        visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let prefix = &self.pool.connector().address().prefix;
        self.scan(keys::MANIFEST, Size::Length, &mut |found| {
            let name = std::str::from_utf8(&found.what)
                .ok()
                .and_then(|whole| whole.strip_prefix(prefix.as_str()))
                .and_then(|name| ManifestName::new(name).ok());
            match name {
                None => Ok(()),
                Some(name) => visit(ManifestEntry {
                    name,
                    bytes: found.known.value_bytes(),
                    last_used: found.known.last_used(),
                }),
            }
        })
    }

    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let names: Vec<String> = names.iter().map(|name| self.whole_name(name)).collect();
        let found = self.fetcher.manifests_quietly(&names)?.into_iter();
        Ok(found.map(|found| Some(found?.recorded.data)).collect())
    }

    fn chunks(
        &self,
        visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.scan(
            keys::CHUNK,
            Size::Length,
            &mut |found| match chunk_of(&found.what) {
                None => Ok(()),
                Some(hash) => visit(ChunkEntry {
                    hash,
                    bytes: found.known.value_bytes(),
                    last_used: found.known.last_used(),
                }),
            },
        )
    }

    /// By what they take in memory, which a server before 7.2 tells without taking that for a use.
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

    /// The total is what the server's memory holds for our keys, and the cap is its `maxmemory`.
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

    fn verify(
        &self,
        progress: &mut dyn FnMut(Progress),
        fault: &mut dyn FnMut(Fault),
    ) -> Result<(), StoreError> {
        let chunks = self.list(keys::CHUNK, Size::Length, chunk_of, fault)?;
        let manifests = self.list(keys::MANIFEST, Size::Length, name_of, fault)?;
        // Every save counts in it. It may be evicted like any key, so alone it says nothing.
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
        read_all("reading chunks", &chunks, progress, fault, |hashes| {
            self.fetcher.chunks_quietly(hashes).map(drop)
        })?;
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
            // The chunk may have come, or the manifest have gone, while we read.
            if self.fetcher.chunks_quietly(&[hash])?[0].is_none()
                && let Some(found) = &self
                    .fetcher
                    .manifests_quietly(std::slice::from_ref(&name))?[0]
                && found.recorded.references().any(|needed| needed == hash)
            {
                fault(Fault::missing(&hash, &name));
            }
        }
        Ok(())
    }

    /// A cap is one of the server's memory ([`Usage::total_bytes`]) and is reached by evicting manifests; the
    /// chunks that only they referred to go when the grace period after that has passed.
    fn collect(
        &self,
        options: &CollectOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Collected, StoreError> {
        collect::collect(self, options, progress)
    }
}

impl RedisStore {
    /// Everything whose key begins so; what is none of ours after all is a fault.
    pub(super) fn list<T>(
        &self,
        start: &str,
        size: Size,
        parse: impl Fn(&[u8]) -> Option<T>,
        fault: &mut dyn FnMut(Fault),
    ) -> Result<Vec<Found<T>>, StoreError> {
        let mut all = Vec::new();
        self.scan(start, size, &mut |found| {
            match parse(&found.what) {
                Some(what) => all.push(Found {
                    what,
                    known: found.known,
                }),
                None => fault(Fault {
                    what: format!("key {start}{}", found.what.escape_ascii()),
                    how: "its name is none that a store gives".into(),
                }),
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Each key that begins so, once.
    fn scan(
        &self,
        start: &str,
        size: Size,
        visit: &mut dyn FnMut(Found<Vec<u8>>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let pattern = format!("{start}*");
        let mut cursor = b"0".to_vec();
        let mut seen = HashSet::new();
        loop {
            let (next, keys) = self
                .page(&cursor, pattern.as_bytes())
                .map_err(|failure| failure.during("list redis"))?;
            let fresh: Vec<Vec<u8>> = keys
                .into_iter()
                .filter(|key| key.starts_with(start.as_bytes()))
                .filter(|key| seen.insert(blake3::hash(key)))
                .collect();
            let known = self
                .look_at(&fresh, size)
                .map_err(|failure| failure.during("list redis"))?;
            for (key, known) in fresh.into_iter().zip(known) {
                // Gone between the two.
                if let Some(known) = known {
                    let what = key[start.len()..].to_vec();
                    visit(Found { what, known })?;
                }
            }
            if next == b"0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn page(&self, cursor: &[u8], pattern: &[u8]) -> Result<(Vec<u8>, Vec<Vec<u8>>), Failure> {
        let reply = self
            .pool
            .call(&[b"SCAN", cursor, b"MATCH", pattern, b"COUNT", PAGE])?;
        match reply {
            Reply::Array(items) => match <[Reply; 2]>::try_from(items) {
                Ok([Reply::Bulk(next), Reply::Array(keys)]) => {
                    let keys = keys.into_iter().map(|key| match key {
                        Reply::Bulk(key) => Ok(key),
                        other => Err(unexpected(&other)),
                    });
                    Ok((next, keys.collect::<Result<_, _>>()?))
                }
                _ => Err(Failure::Garbage("a listing that is none".into())),
            },
            other => Err(unexpected(&other)),
        }
    }

    /// Size and idle time of each key that is there.
    fn look_at(&self, keys: &[Vec<u8>], size: Size) -> Result<Vec<Option<Known>>, Failure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // Only a manifest has something in front whose length is not known.
        let records =
            |key: &[u8]| size == Size::Length && key.starts_with(keys::MANIFEST.as_bytes());
        let (from, to) = (HEADER.to_string(), (HEADER + FIXED - 1).to_string());
        let mut out = Vec::new();
        reply::command(NO_TOUCH).write_packed_command(&mut out);
        for key in keys {
            let size: &[&[u8]] = match size {
                Size::Length => &[b"STRLEN", key],
                Size::Memory => &[b"MEMORY", b"USAGE", key],
            };
            // Before the other questions, which may be a use.
            reply::command(&[b"OBJECT", b"IDLETIME", key]).write_packed_command(&mut out);
            reply::command(size).write_packed_command(&mut out);
            if records(key) {
                let record: &[&[u8]] = &[b"GETRANGE", key, from.as_bytes(), to.as_bytes()];
                reply::command(record).write_packed_command(&mut out);
            }
        }
        reply::command(TOUCH_AGAIN).write_packed_command(&mut out);
        self.pool.with(|connection| {
            self.pool.count();
            connection.send(&out)?;
            // Servers before 7.2 refuse it.
            connection.receive()?;
            let mut known = Vec::with_capacity(keys.len());
            for key in keys {
                let idle = match connection.receive()? {
                    Reply::Int(idle) => u64::try_from(idle).ok().map(Duration::from_secs),
                    // The key is gone.
                    Reply::Nothing => None,
                    Reply::Error(why) if why.contains("LFU") => None,
                    other => return Err(unexpected(&other)),
                };
                let bytes = match connection.receive()? {
                    Reply::Int(bytes) => u64::try_from(bytes).ok().filter(|&bytes| bytes > 0),
                    // Gone, or not a string and so none of ours. Any other error (a server that is busy) says
                    // nothing about the key.
                    Reply::Nothing => None,
                    Reply::Error(why) if why.starts_with("WRONGTYPE") => None,
                    other => return Err(unexpected(&other)),
                };
                let mut front = HEADER as u64;
                if records(key) {
                    front += match connection.receive()? {
                        Reply::Bulk(record) => references_len(&record).unwrap_or(0) + FIXED as u64,
                        Reply::Error(why) if why.starts_with("WRONGTYPE") => 0,
                        other => return Err(unexpected(&other)),
                    };
                }
                known.push(bytes.map(|bytes| Known { bytes, front, idle }));
            }
            connection.receive()?;
            Ok(known)
        })
    }

    fn max_memory(&self) -> Result<Option<u64>, StoreError> {
        match self.pool.call(&[b"INFO", b"memory"]) {
            Ok(Reply::Bulk(info)) => Ok(String::from_utf8_lossy(&info)
                .lines()
                .find_map(|line| line.strip_prefix("maxmemory:")?.trim().parse().ok())
                .filter(|&cap| cap > 0)),
            // Not everybody may ask.
            Ok(_) | Err(Failure::Refused(_)) => Ok(None),
            Err(failure) => Err(failure.during("ask redis for its maxmemory")),
        }
    }
}

/// What comes next on the connection is no use of a key, where the server knows this.
pub(super) const NO_TOUCH: &[&[u8]] = &[b"CLIENT", b"NO-TOUCH", b"ON"];
pub(super) const TOUCH_AGAIN: &[&[u8]] = &[b"CLIENT", b"NO-TOUCH", b"OFF"];

/// The chunk of a key without its start.
pub(super) fn chunk_of(hex: &[u8]) -> Option<ChunkHash> {
    let hex = std::str::from_utf8(hex).ok()?;
    let hash: ChunkHash = hex.parse().ok()?;
    // Upper-case letters would make two keys of one chunk.
    (hash.to_string() == hex).then_some(hash)
}

/// The manifest's whole name of a key without its start.
pub(super) fn name_of(name: &[u8]) -> Option<String> {
    String::from_utf8(name.to_vec()).ok()
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
            // One of them is damaged, or the server is gone: each by itself tells.
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
