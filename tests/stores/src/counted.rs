//! A backend that counts its calls.

use std::sync::Mutex;

use bytes::Bytes;
use transload_store::backend::{Backend, Put};
use transload_store::{ChunkHash, ManifestName, StoreError};

use crate::{Call, forward};

/// Counts calls, and the values that they ask for or put: a batch is one call.
#[derive(Debug)]
pub struct Counted<B> {
    inner: B,
    /// The batch size of a backend that behaves like a server: it does not say what is absent.
    batch: Option<usize>,
    counts: Mutex<[(usize, usize); 6]>,
}

impl<B> Counted<B> {
    /// Wraps `inner`, with all counts zero.
    pub fn new(inner: B) -> Self {
        let counts = Mutex::default();
        Self { inner, batch: None, counts }
    }

    /// Makes a backend that reads this many values at once, like a server, and does not say what is absent.
    pub fn server(inner: B, batch: usize) -> Self {
        Self { batch: Some(batch), ..Self::new(inner) }
    }

    /// Returns the number of calls of a kind, and of their values.
    pub fn count(&self, call: Call) -> (usize, usize) {
        self.counts.lock().unwrap()[call as usize]
    }

    fn add(&self, call: Call, values: usize) {
        assert!(self.batch.is_none_or(|batch| values <= batch), "{values} at once");
        let count = &mut self.counts.lock().unwrap()[call as usize];
        *count = (count.0 + 1, count.1 + values);
    }
}

impl<B: Backend> Backend for Counted<B> {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        self.add(Call::PutChunk, 1);
        self.inner.put_chunk(hash, data)
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.add(Call::GetChunk, 1);
        self.inner.get_chunk(hash)
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.add(Call::GetChunk, hashes.len());
        self.inner.get_chunks(hashes)
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.add(Call::GetManifest, names.len());
        self.inner.get_manifests(names)
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        self.add(Call::PrefetchChunks, hashes.len());
        self.inner.prefetch_chunks(hashes)
    }

    fn batch(&self) -> usize {
        self.batch.unwrap_or_else(|| self.inner.batch())
    }

    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        match self.batch {
            Some(_) => None,
            None => self.inner.absent_chunks(hashes),
        }
    }

    forward!(inner: put_manifest, get_manifest, delete_manifest, manifest_revision, delete_revision);
}
