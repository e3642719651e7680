//! A backend that is slower than it is.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::backend::{Backend, Inventory, Put, Revision, TierStats};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// Adds a time to each call and limits bytes per second over all threads: what a far or busy store would do,
/// or a bound on what a near one may take from others.
///
/// A batch is one call. [`Inventory`] is not slowed down.
#[derive(Debug)]
pub struct Throttled<B> {
    inner: B,
    latency: Duration,
    /// `None` is no limit.
    bytes_per_second: Option<u64>,
    /// When the bytes taken so far will have passed.
    free: Mutex<Option<Instant>>,
}

impl<B> Throttled<B> {
    /// Around `inner`, without limits yet.
    pub fn new(inner: B) -> Self {
        Self {
            inner,
            latency: Duration::ZERO,
            bytes_per_second: None,
            free: Mutex::new(None),
        }
    }

    /// Every call takes this much longer.
    pub fn with_latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// So many bytes pass in a second, both ways together. 0 is taken as 1.
    pub fn with_bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// The backend inside.
    pub fn into_inner(self) -> B {
        self.inner
    }

    /// Waits for the call's latency.
    fn call(&self) {
        if !self.latency.is_zero() {
            thread::sleep(self.latency);
        }
    }

    /// Waits until so many bytes have passed, behind those of other threads.
    fn pass(&self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else {
            return;
        };
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let now = Instant::now();
        let until = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let until = free.map_or(now, |free| free.max(now)) + takes;
            *free = Some(until);
            until
        };
        thread::sleep(until.saturating_duration_since(now));
    }

    fn pass_all(&self, values: &[Option<Bytes>]) {
        self.pass(values.iter().flatten().map(Bytes::len).sum());
    }
}

impl<B: Backend> Backend for Throttled<B> {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        self.call();
        self.pass(data.len());
        self.inner.put_chunk(hash, data)
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.call();
        let value = self.inner.get_chunk(hash)?;
        self.pass(value.as_ref().map_or(0, Bytes::len));
        Ok(value)
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.call();
        self.pass(data.len());
        self.inner.put_manifest(name, data)
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        self.call();
        let value = self.inner.get_manifest(name)?;
        self.pass(value.as_ref().map_or(0, Bytes::len));
        Ok(value)
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.call();
        self.inner.delete_manifest(name)
    }

    fn manifest_revision(
        &self,
        name: &ManifestName,
    ) -> Result<Option<(Bytes, Revision)>, StoreError> {
        self.call();
        let there = self.inner.manifest_revision(name)?;
        self.pass(there.as_ref().map_or(0, |(value, _)| value.len()));
        Ok(there)
    }

    fn delete_revision(
        &self,
        name: &ManifestName,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        self.call();
        self.inner.delete_revision(name, revision)
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        self.inner.prefetch_chunks(hashes)
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.call();
        let values = self.inner.get_chunks(hashes)?;
        self.pass_all(&values);
        Ok(values)
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.call();
        let values = self.inner.get_manifests(names)?;
        self.pass_all(&values);
        Ok(values)
    }

    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        self.call();
        self.pass(manifests.iter().map(|(_, data)| data.len()).sum());
        self.inner.put_manifests(manifests)
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

    #[test]
    fn is_no_faster_than_its_limits() {
        let store = Throttled::new(MemoryStore::default())
            .with_latency(Duration::from_millis(2))
            .with_bytes_per_second(10_000_000);
        let began = Instant::now();
        thread::scope(|scope| {
            for thread in 0..4_u8 {
                let store = &store;
                scope.spawn(move || {
                    for n in 0..5 {
                        let hash = ChunkHash::from([thread * 5 + n; 32]);
                        store.put_chunk(&hash, &[0; 25_000]).unwrap();
                    }
                });
            }
        });
        // 500,000 bytes over all threads. Sleeping is never too short, so this cannot fail by chance.
        assert!(began.elapsed() >= Duration::from_millis(50));
    }
}
