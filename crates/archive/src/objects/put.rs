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
    /// Its key.
    pub key: &'a [u8],
    /// What to put beside it, at most 4 KiB.
    pub meta: &'a [u8],
    /// The memory whose bytes make it up, one behind the other.
    pub parts: &'a [Part<'a>],
}

impl Objects {
    /// Puts objects. One that is there with equal length and meta stays as it is, and nothing is written; any other
    /// is replaced. Of a key that is there twice, the last one counts. All are one publish: under a cap, they have to fit
    /// together. When this returns, objects are as durable as the
    /// store makes its manifests.
    ///
    /// For each, whether it was [stored](Put::Stored) or [there already](Put::AlreadyThere).
    ///
    /// # Errors
    /// [`ObjectError::Key`], [`Meta`](ObjectError::Meta) and [`TooLarge`](ObjectError::TooLarge), and then nothing was put;
    /// or if the store fails, and then some may be put. [`StoreError::Collected`] says that a collection without grace
    /// came between twice: put them again.
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
            // What was put and not published yet was collected, or was lost with another thread's save.
            Err(StoreError::Collected { .. }) => self.publish(&new)?,
            other => other?,
        }
        Ok(keys.iter().map(|key| put[last[key]]).collect())
    }

    /// Puts the pieces of objects, and publishes their manifests together.
    ///
    /// The last one comes first: see [`find`](Self::find). Also, a store takes what the first manifest of several was put
    /// with to be needed for as long as that one is there, so it had better be the first to go.
    fn publish(&self, sources: &[Source<'_>]) -> Result<(), StoreError> {
        let mut manifests = Vec::with_capacity(sources.len());
        let pieces: Vec<_> = sources.iter().map(|source| pieces(source.parts.iter().copied())).collect();
        let all: Vec<&Vec<Part<'_>>> = pieces.iter().flatten().collect();
        let begin = || Ok(Vec::new());
        // A copy is hashed and put: the caller's memory may change between the two.
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

    /// Puts a piece, and makes sure that it can be read where the store had it already: an object that was found damaged is
    /// put in order to heal it, maybe by another process than the one that found it.
    fn put_piece(&self, data: &[u8]) -> Result<[u8; 32], StoreError> {
        let hash = *blake3::hash(data).as_bytes();
        let chunk = ChunkHash::from(hash);
        // A store that has found a chunk damaged writes it when it is put again.
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
    /// Whether it can be an object, but for its key.
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
