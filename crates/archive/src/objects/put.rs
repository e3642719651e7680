//! Putting objects.

use std::collections::HashMap;

use bytes::Bytes;
use transload_store::internal::on_threads;
use transload_store::{ChunkHash, Put, StoreError};

use super::part::{Part, pieces, total};
use super::record::{LARGEST, LONGEST_META, Record};
use super::{ObjectError, Objects, name};
use crate::reading::whole_chunk;

/// An object to put.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The object's key.
    pub key: &'a [u8],
    /// The object's meta, at most 4 KiB.
    pub meta: &'a [u8],
    /// The memory with its bytes, one part after another.
    pub parts: &'a [Part<'a>],
}

impl Objects {
    /// Puts objects. An existing object of equal length and meta stays, and nothing is written; any other is replaced.
    /// If a key occurs several times, the last one counts. All are published together, so under a cap they have to fit
    /// together. When this returns, the objects are as durable as the store makes its manifests.
    ///
    /// Returns for each whether it was [stored](Put::Stored) or [existed already](Put::AlreadyThere).
    ///
    /// # Errors
    /// [`ObjectError::Key`], [`Meta`](ObjectError::Meta) and [`TooLarge`](ObjectError::TooLarge), and then nothing was
    /// put; or an error of the store, and then some objects may be put. [`StoreError::Collected`] means that
    /// collections without a grace period interfered twice: put the objects again.
    pub fn put(&self, sources: &[Source<'_>]) -> Result<Vec<Put>, ObjectError> {
        let keys: Vec<&[u8]> = sources.iter().map(|source| source.key).collect();
        let names = self.names(&keys)?;
        for (at, source) in sources.iter().enumerate() {
            source.check(at)?;
        }
        let last: HashMap<&[u8], usize> = (0..).zip(&keys).map(|(at, key)| (*key, at)).collect();
        let mut put = vec![Put::AlreadyThere; sources.len()];
        let mut new = Vec::new();
        for (at, found) in self.find(&keys, &names)?.into_iter().enumerate() {
            let source = &sources[at];
            let is_there = found.is_some_and(|found| {
                (found.record.bytes, &found.record.meta[..]) == (total(source.parts), source.meta)
            });
            if !is_there && last[source.key] == at {
                put[at] = Put::Stored;
                new.push(*source);
            }
        }
        match self.publish(&new) {
            // Unpublished pieces were collected, or were lost with the failed save of another thread.
            Err(StoreError::Collected { .. }) => self.publish(&new)?,
            other => other?,
        }
        Ok(keys.iter().map(|key| put[last[key]]).collect())
    }

    /// They go from last to first: see [`find`](Self::find). Also, a store keeps the chunks of a batch for as long as
    /// its first manifest exists, so that should be the one that is evicted first.
    fn publish(&self, sources: &[Source<'_>]) -> Result<(), StoreError> {
        let mut manifests = Vec::with_capacity(sources.len());
        let pieces: Vec<_> = sources.iter().map(|source| pieces(source.parts.iter().copied())).collect();
        let all: Vec<&Vec<Part<'_>>> = pieces.iter().flatten().collect();
        let begin = || Ok(Vec::new());
        // Hash and put a copy, because the caller's memory may change in between.
        let put = |together: &mut Vec<u8>, parts: &&Vec<Part<'_>>| {
            together.clear();
            parts.iter().for_each(|part| part.append_to(together));
            self.put_piece(together)
        };
        let mut hashes = on_threads(self.threads, &all, begin, put)?.into_iter();
        for (source, pieces) in sources.iter().zip(&pieces) {
            let record = Record {
                namespace: self.namespace.to_vec(),
                key: source.key.to_vec(),
                bytes: total(source.parts),
                meta: source.meta.to_vec(),
                pieces: hashes.by_ref().take(pieces.len()).collect(),
            };
            let name = name::manifest(&self.namespace, source.key);
            manifests.push((name, Bytes::from(record.encode())));
        }
        manifests.reverse();
        match &manifests[..] {
            [] => Ok(()),
            some => self.store.put_manifests(some),
        }
    }

    /// Puts a piece. If the store has it already, this checks that it is readable, because the put may serve to repair
    /// a damaged object, maybe one that another process found.
    fn put_piece(&self, data: &[u8]) -> Result<[u8; 32], StoreError> {
        let hash = *blake3::hash(data).as_bytes();
        let chunk = ChunkHash::from(hash);
        // A store that has found a chunk damaged stores it again at the next put.
        for _ in 0..2 {
            if self.store.put_chunk(&chunk, data)? == Put::Stored {
                return Ok(hash);
            }
            let read = self.store.get_chunk(&chunk);
            match whole_chunk(&*self.store, &chunk, read, |there| there == data) {
                Ok(Some(_)) => return Ok(hash),
                Ok(None) | Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Damaged {
            what: format!("chunk {chunk}"),
            how: "the store has other bytes under this hash, and keeps them when it is put again".to_owned(),
        })
    }
}

impl Source<'_> {
    fn check(&self, at: usize) -> Result<(), ObjectError> {
        let (len, bytes) = (self.meta.len(), total(self.parts));
        if len > LONGEST_META {
            return Err(ObjectError::Meta { at, len });
        }
        if bytes > LARGEST {
            return Err(ObjectError::TooLarge { at, bytes });
        }
        Ok(())
    }
}
