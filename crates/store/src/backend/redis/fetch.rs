//! Reading of many values in few round trips, with a bound on the bytes that the server buffers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::connection::Connection;
use super::failure::Failure;
use super::keys;
use super::pool::Pool;
use super::reply::{self, NO_TOUCH, Reply, TOUCH_AGAIN, unexpected};
use crate::backend::damaged::Damaged;
use crate::backend::header::HEADER;
use crate::backend::recorded::{FIXED, Recorded};
use crate::backend::sealed::Seal;
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The maximum bytes that were requested and not read yet. The server buffers its replies until they are sent.
const IN_FLIGHT: usize = 32 << 20;

pub(super) const MOST_TOGETHER: usize = 1024;

/// The number of chunks requested before any length is known: 64 chunks of 256 KiB are 16 MiB.
const FIRST: usize = 64;

#[derive(Clone, Copy)]
enum Use {
    /// A consumer wants the value: updates its last-used time.
    Reading,
    /// An operator looks at the value.
    Looking,
}

#[derive(Debug)]
pub(super) struct Stored {
    /// The beginning of its value, which differs for each put.
    pub(super) identity: Bytes,
    pub(super) recorded: Recorded,
}

impl Stored {
    fn open(value: Bytes, name: &str) -> Result<Self, StoreError> {
        let seal = Seal::Manifest(name.as_bytes());
        let body = seal.open(value.clone())?;
        Ok(Self { recorded: Recorded::decode(body, || seal.to_string())?, identity: value.slice(..HEADER + FIXED) })
    }
}

#[derive(Debug)]
pub(super) struct Fetcher {
    pool: Arc<Pool>,
    /// The longest chunk seen with its header, 0 before the first.
    longest: AtomicUsize,
    pub(super) damaged: Damaged,
}

impl Fetcher {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, longest: AtomicUsize::new(0), damaged: Damaged::default() }
    }

    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    pub(super) fn chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.checked_chunks(hashes, Use::Reading)
    }

    /// Like [`chunks`](Self::chunks), but does not update last-used times, where the server supports that.
    pub(super) fn chunks_quietly(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.checked_chunks(hashes, Use::Looking)
    }

    fn checked_chunks(&self, hashes: &[ChunkHash], why: Use) -> Result<Vec<Option<Bytes>>, StoreError> {
        let keys: Vec<Vec<u8>> = hashes.iter().map(keys::chunk).collect();
        let first = match self.longest() {
            0 => FIRST,
            longest => window(longest),
        };
        let values = self.values(&keys, first, why).map_err(|failure| {
            failure.during(match hashes {
                [hash] => format!("get chunk {hash}"),
                _ => format!("get {} chunks", hashes.len()),
            })
        })?;
        let longest = values.iter().flatten().map(Vec::len).max().unwrap_or(0);
        self.longest.fetch_max(longest, Ordering::Relaxed);
        let values = values.into_iter().zip(hashes).map(|(value, hash)| {
            let seal = Seal::Chunk(hash.as_bytes());
            let read = value.map(|value| seal.open(value.into())).transpose();
            self.damaged.note(hash, &read);
            read
        });
        // Note every damaged chunk before returning the first error.
        values.collect::<Vec<_>>().into_iter().collect()
    }

    pub(super) fn manifests(&self, names: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let found = self.checked_manifests(names, Use::Reading)?.into_iter();
        Ok(found.map(|found| Some(found?.recorded.data)).collect())
    }

    /// Reads manifests without updating last-used times, where the server supports that.
    pub(super) fn manifests_quietly(&self, names: &[String]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.checked_manifests(names, Use::Looking)
    }

    fn checked_manifests(&self, names: &[String], why: Use) -> Result<Vec<Option<Stored>>, StoreError> {
        let keys: Vec<Vec<u8>> = names.iter().map(|name| keys::manifest(name)).collect();
        let values = self
            .values(&keys, MOST_TOGETHER, why)
            .map_err(|failure| failure.during(format!("get {} manifests", names.len())))?;
        let each = values.into_iter().zip(names);
        each.map(|(value, name)| value.map(|value| Stored::open(value.into(), name)).transpose()).collect()
    }

    fn values(&self, keys: &[Vec<u8>], first: usize, why: Use) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.pool.with(|connection| match why {
            Use::Reading => self.exchange(connection, keys, first),
            Use::Looking => {
                // Servers before 7.2 refuse both commands, which does no harm.
                connection.ignore(NO_TOUCH)?;
                let values = self.exchange(connection, keys, first);
                connection.ignore(TOUCH_AGAIN)?;
                values
            }
        })
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        keys: &[Vec<u8>],
        first: usize,
    ) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let mut values = Vec::with_capacity(keys.len());
        let mut refused = None;
        let mut left: VecDeque<&Vec<u8>> = keys.iter().collect();
        let mut under_way = 0;
        let mut window_now = first;
        let mut longest = 0;
        let mut out = Vec::new();
        while values.len() < keys.len() {
            // Request the next values while half a window is still outstanding, so that the server is never idle.
            if !left.is_empty() && under_way <= window_now / 2 {
                out.clear();
                while under_way < window_now
                    && let Some(key) = left.pop_front()
                {
                    reply::command(&[b"GET", key]).write_packed_command(&mut out);
                    under_way += 1;
                }
                self.pool.count();
                connection.send(&out)?;
            }
            values.push(match connection.receive()? {
                Reply::Bulk(value) => {
                    longest = longest.max(value.len());
                    Some(value)
                }
                Reply::Nothing => None,
                Reply::Error(why) => {
                    refused.get_or_insert(why);
                    None
                }
                other => return Err(unexpected(&other)),
            });
            under_way -= 1;
            if longest > 0 {
                window_now = window(longest);
            }
        }
        // Return the error only after every reply has been read, because the connection is used again.
        match refused {
            Some(why) => Err(Failure::Refused(why)),
            None => Ok(values),
        }
    }
}

fn window(longest: usize) -> usize {
    (IN_FLIGHT / longest.max(1)).clamp(1, MOST_TOGETHER)
}
