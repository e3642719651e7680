//! The operator's interface of a store in memory. It is useful only inside the store's process.

use bytes::Bytes;

use super::contents::Contents;
use super::store::{MemoryStore, chunk, manifest};
use crate::backend::{
    ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage, is_leftover,
};
use crate::error::StoreError;
use crate::name::ManifestName;

impl Inventory for MemoryStore {
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let entries: Vec<ManifestEntry> = {
            let contents = self.contents();
            let entries = contents.manifests.iter().map(|(name, there)| ManifestEntry {
                name: name.clone(),
                bytes: there.value.data.len() as u64,
                last_used: Some(there.used),
            });
            entries.collect()
        };
        entries.into_iter().try_for_each(visit)
    }

    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let manifests = &self.contents().manifests;
        let data = |name| {
            let there = manifests.get(name)?;
            Some(there.value.clone().read(manifest(name)))
        };
        names.iter().map(|name| data(name).transpose()).collect()
    }

    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let entries: Vec<ChunkEntry> = {
            let contents = self.contents();
            let entries = contents.chunks.iter().map(|(hash, chunk)| ChunkEntry {
                hash: *hash,
                bytes: chunk.value.data.len() as u64,
                last_used: Some(chunk.used),
            });
            entries.collect()
        };
        entries.into_iter().try_for_each(visit)
    }

    fn usage(&self) -> Result<Usage, StoreError> {
        let contents = self.contents();
        let sum = |lens: &mut dyn Iterator<Item = usize>| lens.map(|len| len as u64).sum();
        let manifests = &mut contents.manifests.values().map(|there| there.value.data.len());
        let chunks = &mut contents.chunks.values().map(|chunk| chunk.value.data.len());
        Ok(Usage {
            manifests: contents.manifests.len() as u64,
            manifest_bytes: sum(manifests),
            chunks: contents.chunks.len() as u64,
            chunk_bytes: sum(chunks),
            total_bytes: contents.used,
            cap: Some(contents.cap()).filter(|cap| *cap < u64::MAX),
        })
    }

    /// Reports values that changed since the put. No chunk can be missing: one with references is never evicted alone.
    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError> {
        let contents = self.contents().clone();
        let total = (contents.chunks.len() + contents.manifests.len()) as u64;
        let chunks = contents.chunks.iter();
        let chunks = chunks.map(|(hash, there)| there.value.clone().read(chunk(hash)));
        let manifests = contents.manifests.iter();
        let manifests = manifests.map(|(name, there)| there.value.clone().read(manifest(name)));
        for (done, read) in (1..).zip(chunks.chain(manifests)) {
            if let Err(StoreError::Damaged { what, how }) = read {
                fault(Fault { what, how });
            }
            progress(Progress { step: "reading memory", done, total });
        }
        Ok(())
    }

    fn collect(&self, options: &CollectOptions, _: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError> {
        let mut contents = self.contents();
        Ok(match options.dry_run {
            true => contents.clone().collect(options),
            false => contents.collect(options),
        })
    }
}

impl Contents {
    fn collect(&mut self, options: &CollectOptions) -> Collected {
        let old = |used: &std::time::SystemTime| used.elapsed().is_ok_and(|age| age >= options.grace);
        let count = |this: &Self| (this.manifests.len() as u64, this.chunks.len() as u64);
        let (before, mut collected) = (self.used, Collected::default());
        let (all, chunks) = count(self);
        let left = self.manifests.iter();
        let left = left.filter(|(name, there)| is_leftover(name.as_str()) && old(&there.used));
        for name in left.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            collected.leftovers += 1;
            self.remove_manifest(&name, true);
        }
        let free = self.chunks.iter();
        let free = free.filter(|(_, chunk)| chunk.references == 0 && !chunk.pending);
        let (gone, kept): (Vec<_>, Vec<_>) =
            free.map(|(hash, chunk)| (*hash, old(&chunk.used))).partition(|(_, old)| *old);
        collected.in_grace = kept.len() as u64;
        gone.iter().for_each(|(hash, _)| self.remove_chunk(hash));
        while options.cap.is_some_and(|cap| self.used > cap) && self.evict() {}
        let (left, chunks_left) = count(self);
        collected.manifests = all - left - collected.leftovers;
        collected.chunks = chunks - chunks_left;
        collected.bytes = before - self.used;
        collected
    }
}
