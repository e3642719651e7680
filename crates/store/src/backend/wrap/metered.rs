//! What a backend was asked for, and how long it took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::backend::{Backend, Inventory, Put, Revision, TierStats};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// Counts calls, values, bytes, errors and time, by kind of call.
#[derive(Debug)]
pub struct Metered<B> {
    inner: B,
    put_chunk: Meter,
    already_there: AtomicU64,
    get_chunk: Meter,
    put_manifest: Meter,
    get_manifest: Meter,
    delete_manifest: Meter,
    prefetch_chunks: Meter,
}

/// A moment's counts. Those of one call become visible one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Chunks put.
    pub put_chunk: CallStats,
    /// Of these, how many were there.
    pub already_there: u64,
    /// Chunks asked for, also in batches.
    pub get_chunk: CallStats,
    /// Manifests put, also in batches.
    pub put_manifest: CallStats,
    /// Manifests asked for, also in batches.
    pub get_manifest: CallStats,
    /// Manifests deleted.
    pub delete_manifest: CallStats,
    /// Hints.
    pub prefetch_chunks: CallStats,
}

/// The counts of one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// Calls; a batch is one.
    pub calls: u64,
    /// Values asked for or put.
    pub values: u64,
    /// Bytes of the values that were put or found.
    pub bytes: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Time spent in the calls, of all threads together.
    pub time: Duration,
}

#[derive(Debug, Default)]
struct Meter {
    calls: AtomicU64,
    values: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
}

impl Meter {
    fn run<T>(
        &self,
        values: usize,
        bytes: impl FnOnce(&T) -> usize,
        call: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let add = |counter: &AtomicU64, more: u64| counter.fetch_add(more, Ordering::Relaxed);
        let began = Instant::now();
        let done = call();
        // 580 years fit.
        add(&self.nanos, began.elapsed().as_nanos() as u64);
        add(&self.calls, 1);
        add(&self.values, values as u64);
        match &done {
            Ok(value) => add(&self.bytes, bytes(value) as u64),
            Err(_) => add(&self.errors, 1),
        };
        done
    }

    fn stats(&self) -> CallStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CallStats {
            calls: get(&self.calls),
            values: get(&self.values),
            bytes: get(&self.bytes),
            errors: get(&self.errors),
            time: Duration::from_nanos(get(&self.nanos)),
        }
    }
}

impl<B> Metered<B> {
    /// Around `inner`, from zero.
    pub fn new(inner: B) -> Self {
        Self {
            inner,
            put_chunk: Meter::default(),
            already_there: AtomicU64::new(0),
            get_chunk: Meter::default(),
            put_manifest: Meter::default(),
            get_manifest: Meter::default(),
            delete_manifest: Meter::default(),
            prefetch_chunks: Meter::default(),
        }
    }

    /// The counts so far.
    pub fn snapshot(&self) -> Stats {
        Stats {
            put_chunk: self.put_chunk.stats(),
            already_there: self.already_there.load(Ordering::Relaxed),
            get_chunk: self.get_chunk.stats(),
            put_manifest: self.put_manifest.stats(),
            get_manifest: self.get_manifest.stats(),
            delete_manifest: self.delete_manifest.stats(),
            prefetch_chunks: self.prefetch_chunks.stats(),
        }
    }

    /// The backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend inside.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

fn one(value: &Option<Bytes>) -> usize {
    value.as_ref().map_or(0, Bytes::len)
}

#[expect(clippy::ptr_arg, reason = "what the calls return")]
fn all(values: &Vec<Option<Bytes>>) -> usize {
    values.iter().map(one).sum()
}

impl<B: Backend> Backend for Metered<B> {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let call = || self.inner.put_chunk(hash, data);
        let put = self.put_chunk.run(1, |_| data.len(), call)?;
        if put == Put::AlreadyThere {
            self.already_there.fetch_add(1, Ordering::Relaxed);
        }
        Ok(put)
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.get_chunk.run(1, one, || self.inner.get_chunk(hash))
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let call = || self.inner.put_manifest(name, data);
        self.put_manifest.run(1, |()| data.len(), call)
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        self.get_manifest
            .run(1, one, || self.inner.get_manifest(name))
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        let call = || self.inner.delete_manifest(name);
        self.delete_manifest.run(1, |()| 0, call)
    }

    fn manifest_revision(
        &self,
        name: &ManifestName,
    ) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let bytes =
            |there: &Option<(Bytes, Revision)>| there.as_ref().map_or(0, |(value, _)| value.len());
        let call = || self.inner.manifest_revision(name);
        self.get_manifest.run(1, bytes, call)
    }

    fn delete_revision(
        &self,
        name: &ManifestName,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        let call = || self.inner.delete_revision(name, revision);
        self.delete_manifest.run(1, |_| 0, call)
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        let call = || self.inner.prefetch_chunks(hashes);
        self.prefetch_chunks.run(hashes.len(), |()| 0, call)
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let call = || self.inner.get_chunks(hashes);
        self.get_chunk.run(hashes.len(), all, call)
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let call = || self.inner.get_manifests(names);
        self.get_manifest.run(names.len(), all, call)
    }

    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        let bytes = manifests.iter().map(|(_, data)| data.len()).sum();
        let call = || self.inner.put_manifests(manifests);
        self.put_manifest.run(manifests.len(), |()| bytes, call)
    }

    fn reread_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.inner.reread_chunk(hash)
    }

    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        self.inner.absent_chunks(hashes)
    }

    fn tiers(&self) -> Vec<TierStats> {
        self.inner.tiers()
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        self.inner.inventory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryStore;
    use crate::backend::wrap::{Call, Effect, Faulty, Plan};

    #[test]
    fn counts_what_was_asked_and_what_came() {
        let plan = Plan::new().with(Call::PutManifest, 1, Effect::FailBefore);
        let store = Metered::new(Faulty::new(MemoryStore::default(), plan));
        let [a, b] = [[1; 32], [2; 32]].map(ChunkHash::from);
        let name = ManifestName::new("m").unwrap();
        store.put_chunk(&a, b"12345").unwrap();
        store.put_chunk(&a, b"12345").unwrap();
        assert!(store.put_manifest(&name, b"123").is_err());
        store.put_manifest(&name, b"123").unwrap();
        store.get_chunks(&[a, b]).unwrap();
        store.get_chunk(&b).unwrap();
        store.prefetch_chunks(&[a, b]).unwrap();
        let stats = store.snapshot();
        let counts = |stats: CallStats| (stats.calls, stats.values, stats.bytes, stats.errors);
        assert_eq!(counts(stats.put_chunk), (2, 2, 10, 0));
        assert_eq!(stats.already_there, 1);
        assert_eq!(counts(stats.put_manifest), (2, 2, 3, 1));
        assert_eq!(counts(stats.get_chunk), (2, 3, 5, 0));
        assert_eq!(counts(stats.prefetch_chunks), (1, 2, 0, 0));
        assert_eq!(counts(stats.delete_manifest), (0, 0, 0, 0));
    }
}
