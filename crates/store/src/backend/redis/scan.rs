//! Iteration over the keys of a database, with their sizes and idle times.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::failure::Failure;
use super::reply::{NO_TOUCH, Reply, TOUCH_AGAIN, command, unexpected};
use super::{RedisStore, keys};
use crate::backend::Fault;
use crate::backend::header::HEADER;
use crate::backend::recorded::{FIXED, references_len};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The number of keys in a page of a listing. The server does nothing else while it collects a page.
const PAGE: &[u8] = b"1000";

/// One of the store's keys without its type prefix, with the server's data about it.
#[derive(Debug)]
pub(super) struct Found<T> {
    pub(super) what: T,
    pub(super) known: Known,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The size that the listing requested: the length of the whole value, or its memory.
    pub(super) bytes: u64,
    /// The number of bytes in front of the consumer's bytes, if the listing requested the length.
    front: u64,
    pub(super) idle: Option<Duration>,
}

impl Known {
    pub(super) fn last_used(&self) -> Option<SystemTime> {
        SystemTime::now().checked_sub(self.idle?)
    }

    pub(super) fn value_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.front)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Length,
    /// The memory that the key takes on the server. Requesting it is not a use, on any server version.
    Memory,
}

impl RedisStore {
    /// Returns all keys that begin with `start`. A key that no store writes is reported as a fault.
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
                Some(what) => all.push(Found { what, known: found.known }),
                None => fault(Fault {
                    what: format!("key {start}{}", found.what.escape_ascii()),
                    how: "its name is none that a store gives".into(),
                }),
            }
            Ok(())
        })?;
        Ok(all)
    }

    pub(super) fn scan(
        &self,
        start: &str,
        size: Size,
        visit: &mut dyn FnMut(Found<Vec<u8>>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let pattern = format!("{start}*");
        let mut cursor = b"0".to_vec();
        let mut seen = HashSet::new();
        loop {
            let (next, keys) =
                self.page(&cursor, pattern.as_bytes()).map_err(|failure| failure.during("list redis"))?;
            let fresh: Vec<Vec<u8>> = keys
                .into_iter()
                .filter(|key| key.starts_with(start.as_bytes()))
                .filter(|key| seen.insert(blake3::hash(key)))
                .collect();
            let known = self.look_at(&fresh, size).map_err(|failure| failure.during("list redis"))?;
            for (key, known) in fresh.into_iter().zip(known) {
                // The key was removed between the two requests.
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
        let reply = self.pool.call(&[b"SCAN", cursor, b"MATCH", pattern, b"COUNT", PAGE])?;
        match reply {
            Reply::Array(items) => match <[Reply; 2]>::try_from(items) {
                Ok([Reply::Bulk(next), Reply::Array(keys)]) => {
                    let keys = keys.into_iter().map(|key| match key {
                        Reply::Bulk(key) => Ok(key),
                        other => Err(unexpected(&other)),
                    });
                    Ok((next, keys.collect::<Result<_, _>>()?))
                }
                _ => Err(Failure::Garbage("an invalid listing".into())),
            },
            other => Err(unexpected(&other)),
        }
    }

    fn look_at(&self, keys: &[Vec<u8>], size: Size) -> Result<Vec<Option<Known>>, Failure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // Only a manifest has a front of unknown length.
        let records = |key: &[u8]| size == Size::Length && key.starts_with(keys::MANIFEST.as_bytes());
        let (from, to) = (HEADER.to_string(), (HEADER + FIXED - 1).to_string());
        let mut out = Vec::new();
        command(NO_TOUCH).write_packed_command(&mut out);
        for key in keys {
            let size: &[&[u8]] = match size {
                Size::Length => &[b"STRLEN", key],
                Size::Memory => &[b"MEMORY", b"USAGE", key],
            };
            // Ask for the idle time first, since the other commands may count as a use.
            command(&[b"OBJECT", b"IDLETIME", key]).write_packed_command(&mut out);
            command(size).write_packed_command(&mut out);
            if records(key) {
                let record: &[&[u8]] = &[b"GETRANGE", key, from.as_bytes(), to.as_bytes()];
                command(record).write_packed_command(&mut out);
            }
        }
        command(TOUCH_AGAIN).write_packed_command(&mut out);
        self.pool.with(|connection| {
            self.pool.count();
            connection.send(&out)?;
            // Servers before 7.2 refuse `NO-TOUCH`.
            connection.receive()?;
            let mut known = Vec::with_capacity(keys.len());
            for key in keys {
                let idle = match connection.receive()? {
                    Reply::Int(idle) => u64::try_from(idle).ok().map(Duration::from_secs),
                    // The key was removed.
                    Reply::Nothing => None,
                    Reply::Error(why) if why.contains("LFU") => None,
                    other => return Err(unexpected(&other)),
                };
                let bytes = match connection.receive()? {
                    Reply::Int(bytes) => u64::try_from(bytes).ok().filter(|&bytes| bytes > 0),
                    // The key was removed, or it is not a string and so not the store's. Any other error (a busy
                    // server) says nothing about the key.
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
}

pub(super) fn chunk_of(hex: &[u8]) -> Option<ChunkHash> {
    let hex = std::str::from_utf8(hex).ok()?;
    let hash: ChunkHash = hex.parse().ok()?;
    // Upper-case digits would make a second key for the same chunk.
    (hash.to_string() == hex).then_some(hash)
}

pub(super) fn name_of(name: &[u8]) -> Option<String> {
    String::from_utf8(name.to_vec()).ok()
}
