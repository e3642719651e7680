//! A checksum in every value of any backend.

use bytes::Bytes;

use crate::backend::sealed::Seal;
use crate::backend::{Backend, Put, Revision, TierStats};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// Puts 16 bytes in front of every value, with its length and a CRC32C of it and its key, and checks them when
/// it is read: for a backend that promises nothing itself, as somebody else's library may.
///
/// What was put without this wrapper is [`StoreError::Damaged`] through it. It has no
/// [`Inventory`](crate::backend::Inventory): the backend's own would count the 16 bytes and verify nothing.
#[derive(Debug)]
pub struct Checksummed<B> {
    inner: B,
}

impl<B> Checksummed<B> {
    /// Around `inner`.
    pub fn new(inner: B) -> Self {
        Self { inner }
    }

    /// The backend inside.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

fn sealed(seal: Seal<'_>, data: &[u8]) -> Vec<u8> {
    [&seal.header(data)[..], data].concat()
}

fn chunk(hash: &ChunkHash) -> Seal<'_> {
    Seal::Chunk(hash.as_bytes())
}

fn manifest(name: &ManifestName) -> Seal<'_> {
    Seal::Manifest(name.as_str().as_bytes())
}

fn open<'a>(
    values: Vec<Option<Bytes>>,
    seals: impl Iterator<Item = Seal<'a>>,
) -> Result<Vec<Option<Bytes>>, StoreError> {
    values
        .into_iter()
        .zip(seals)
        .map(|(value, seal)| value.map(|value| seal.open(value)).transpose())
        .collect()
}

impl<B: Backend> Backend for Checksummed<B> {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        self.inner.put_chunk(hash, &sealed(chunk(hash), data))
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let value = self.inner.get_chunk(hash)?;
        value.map(|value| chunk(hash).open(value)).transpose()
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.inner.put_manifest(name, &sealed(manifest(name), data))
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        let value = self.inner.get_manifest(name)?;
        value.map(|value| manifest(name).open(value)).transpose()
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.inner.delete_manifest(name)
    }

    fn manifest_revision(
        &self,
        name: &ManifestName,
    ) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let Some((value, revision)) = self.inner.manifest_revision(name)? else {
            return Ok(None);
        };
        Ok(Some((manifest(name).open(value)?, revision)))
    }

    fn delete_revision(
        &self,
        name: &ManifestName,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        self.inner.delete_revision(name, revision)
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        self.inner.prefetch_chunks(hashes)
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        open(self.inner.get_chunks(hashes)?, hashes.iter().map(chunk))
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        open(self.inner.get_manifests(names)?, names.iter().map(manifest))
    }

    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        let sealed: Vec<(ManifestName, Bytes)> = manifests
            .iter()
            .map(|(name, data)| (name.clone(), sealed(manifest(name), data).into()))
            .collect();
        self.inner.put_manifests(&sealed)
    }

    fn reread_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let value = self.inner.reread_chunk(hash)?;
        value.map(|value| chunk(hash).open(value)).transpose()
    }

    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        self.inner.absent_chunks(hashes)
    }

    fn tiers(&self) -> Vec<TierStats> {
        self.inner.tiers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryStore;
    use crate::backend::wrap::{Call, Effect, Faulty, Plan};

    #[test]
    fn a_bit_that_changed_below_is_an_error_above() {
        let hash = ChunkHash::from([7; 32]);
        let name = ManifestName::new("m").unwrap();
        let plan = Plan::new()
            .with(Call::GetChunk, 1, Effect::FlipBit(999))
            .with(Call::GetManifest, 1, Effect::FlipBit(3));
        let store = Checksummed::new(Faulty::new(MemoryStore::default(), plan));
        store.put_chunk(&hash, b"bytes").unwrap();
        store.put_manifest(&name, b"").unwrap();
        for _ in 0..2 {
            assert!(matches!(
                store.get_chunk(&hash),
                Err(StoreError::Damaged { .. })
            ));
            assert!(matches!(
                store.get_manifest(&name),
                Err(StoreError::Damaged { .. })
            ));
            assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), "bytes");
            assert_eq!(store.get_manifest(&name).unwrap().unwrap(), "");
            store.inner.set_plan(
                Plan::new()
                    .with(Call::GetChunk, 1, Effect::FlipBit(0))
                    .with(Call::GetManifest, 1, Effect::FlipBit(127)),
            );
        }
        // What somebody else put there has no checksum.
        let other = ManifestName::new("other").unwrap();
        store
            .inner
            .put_manifest(&other, b"a manifest of somebody else")
            .unwrap();
        assert!(matches!(
            store.get_manifest(&other),
            Err(StoreError::Damaged { .. })
        ));
    }
}
