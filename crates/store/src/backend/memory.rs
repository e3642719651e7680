//! A store in memory, for tests and for what need not outlive its process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;

use super::{Backend, Put, Revision};
use crate::error::StoreError;
use crate::export::Plugin;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// A handle of a store in memory. Its clones are handles of the same store, which goes with the last of them.
///
/// What is put is visible at once. As a plugin its scheme is anything: handles that one process opens with the
/// same URI are of one store, which then stays as long as the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<RwLock<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    chunks: HashMap<ChunkHash, Bytes>,
    /// Each with the number of its put.
    manifests: HashMap<ManifestName, (u64, Bytes)>,
    puts: u64,
}

impl MemoryStore {
    /// A new, empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The store of this name in this process, new and empty at the first call.
    pub fn named(name: &str) -> Self {
        static STORES: LazyLock<Mutex<HashMap<String, MemoryStore>>> =
            LazyLock::new(Mutex::default);
        let mut stores: MutexGuard<'_, _> = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.entry(name.to_owned()).or_default().clone()
    }

    // Contents are whole between any two statements, so a panic elsewhere leaves nothing half done.
    fn read<T>(&self, of: impl FnOnce(&Contents) -> T) -> T {
        of(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, to: impl FnOnce(&mut Contents) -> T) -> T {
        to(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Backend for MemoryStore {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        if self.read(|contents| contents.chunks.contains_key(hash)) {
            return Ok(Put::AlreadyThere);
        }
        let data = Bytes::copy_from_slice(data);
        Ok(self.write(|contents| match contents.chunks.entry(*hash) {
            Entry::Occupied(_) => Put::AlreadyThere,
            Entry::Vacant(place) => {
                place.insert(data);
                Put::Stored
            }
        }))
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        Ok(self.read(|contents| contents.chunks.get(hash).cloned()))
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let data = Bytes::copy_from_slice(data);
        self.write(|contents| {
            contents.puts += 1;
            let put = contents.puts;
            contents.manifests.insert(name.clone(), (put, data))
        });
        Ok(())
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        Ok(self.read(|contents| Some(contents.manifests.get(name)?.1.clone())))
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.write(|contents| contents.manifests.remove(name));
        Ok(())
    }

    fn manifest_revision(
        &self,
        name: &ManifestName,
    ) -> Result<Option<(Bytes, Revision)>, StoreError> {
        Ok(self.read(|contents| {
            let (put, data) = contents.manifests.get(name)?;
            Some((data.clone(), Revision::new(*put)))
        }))
    }

    fn delete_revision(
        &self,
        name: &ManifestName,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        Ok(self.write(|contents| {
            let there = contents.manifests.get(name).map(|(put, _)| put);
            let same = there.is_some() && there == revision.mark();
            same && contents.manifests.remove(name).is_some()
        }))
    }
}

impl Plugin for MemoryStore {
    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Ok(Self::named(uri.as_str().trim_end_matches('/')))
    }
}
