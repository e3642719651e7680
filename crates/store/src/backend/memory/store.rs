//! The memory store's handle, which implements [`Backend`].

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::contents::{Contents, Key, Value};
use crate::backend::guard::Guard;
use crate::backend::sealed::Seal;
use crate::backend::{Backend, Inventory, Put, Revision};
use crate::error::StoreError;
use crate::export::Plugin;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// A handle of a store in memory. Clones share the store, which is dropped with the last of them.
///
/// Values are visible as soon as they are put. When the cap is reached, a [`Policy`](super::Policy) with a window of
/// 8 accesses chooses what to evict: first chunks without references, then manifests
/// with the chunks that only they refer to. Chunks that wait for their manifest are never evicted. If there is still no
/// room, a put fails with [`StoreError::Full`].
///
/// As a plugin it accepts any scheme.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    contents: Mutex<Contents>,
    guard: Guard,
}

impl MemoryStore {
    /// The environment variable with the cap of stores that are opened by a URI.
    pub const CAP_VARIABLE: &str = "TRANSLOAD_MEMORY_CAP";

    /// The default cap of a store that is opened by a URI, in bytes.
    pub const DEFAULT_CAP: u64 = 4 << 30;

    /// Returns a new, empty store without a cap.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a new, empty store that takes at most this many bytes.
    pub fn with_cap(cap: u64) -> Self {
        Self(Arc::new(Shared { contents: Mutex::new(Contents::new(cap)), guard: Guard::default() }))
    }

    /// Returns the store of this URI in this process, creating it at the first call. It lives as long as the process.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the store exists with another cap.
    pub(crate) fn open_uri(uri: &StoreUri, cap: u64) -> Result<Self, StoreError> {
        static STORES: LazyLock<Mutex<HashMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);
        let name = uri.as_str().trim_end_matches('/').to_owned();
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        let store = stores.entry(name).or_insert_with(|| Self::with_cap(cap));
        let there = store.contents().cap();
        if there != cap {
            return Err(StoreError::Unsupported {
                what: "opening a store in memory with two caps",
                why: format!("{uri} is open in this process with a cap of {there} bytes, not {cap}"),
            });
        }
        Ok(store.clone())
    }

    /// Returns the cap from the environment, or else [`DEFAULT_CAP`](Self::DEFAULT_CAP).
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the variable is set to a text that is not a size.
    pub(crate) fn cap_from_env() -> Result<u64, StoreError> {
        Ok(crate::size::from_env(Self::CAP_VARIABLE)?.unwrap_or(Self::DEFAULT_CAP))
    }

    /// Caches a chunk of another store. No manifest will follow, so it can be evicted at once.
    pub(in crate::backend) fn cache_chunk(&self, hash: &ChunkHash, data: Bytes) -> Result<Put, StoreError> {
        let value = Value::new(chunk(hash), data);
        self.contents().put_chunk(hash, value, false)
    }

    pub(in crate::backend) fn drop_chunk(&self, hash: &ChunkHash) {
        self.contents().mark_damaged(hash);
    }

    pub(in crate::backend) fn evictions(&self) -> u64 {
        self.contents().evictions
    }

    // No panic can occur between changes that belong together.
    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn chunk(hash: &ChunkHash) -> Seal<'_> {
    Seal::Chunk(hash.as_bytes())
}

pub(super) fn manifest(name: &ManifestName) -> Seal<'_> {
    Seal::Manifest(name.as_str().as_bytes())
}

impl Backend for MemoryStore {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        // Copy and compute the checksum without the lock.
        let known = self.contents().chunks.get(hash).cloned();
        let known = known.filter(|chunk| !chunk.damaged);
        let value = known.map_or_else(|| Value::new(chunk(hash), Bytes::copy_from_slice(data)), |chunk| chunk.value);
        let mut contents = self.contents();
        let put = contents.put_chunk(hash, value, true);
        match &put {
            Ok(_) => self.0.guard.put(hash),
            // A save that cannot continue gives up its pending chunks, so that they can be evicted.
            Err(_) => {
                let given_up = self.0.guard.needed([])?;
                contents.unpin(&given_up.chunks);
                let _error = self.0.guard.gone(&given_up, &given_up.chunks);
            }
        }
        put
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let mut contents = self.contents();
        contents.hit(&Key::Chunk(*hash));
        let there = contents.chunks.get(hash).cloned();
        // Verify the checksum without the lock.
        drop(contents);
        let Some(there) = there else { return Ok(None) };
        if there.damaged {
            return Err(StoreError::Damaged {
                what: chunk(hash).to_string(),
                how: "its bytes were found to be wrong before".to_owned(),
            });
        }
        let place = there.value.data.as_ptr();
        let read = there.value.read(chunk(hash));
        if read.is_err()
            && let Some(there) = self.contents().chunks.get_mut(hash)
        {
            there.damaged |= there.value.data.as_ptr() == place;
        }
        read.map(Some)
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let copy = Value::new(manifest(name), Bytes::copy_from_slice(data));
        let needs = copy.data.clone();
        let mut contents = self.contents();
        let guard = &self.0.guard;
        let needed = guard.needed([&needs[..]])?;
        let gone = contents.put_manifest(name, copy, &needed.chunks)?;
        if let Some(error) = guard.gone(&needed, &gone) {
            return Err(error);
        }
        guard.published(&needed);
        Ok(())
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        let mut contents = self.contents();
        contents.hit(&Key::Manifest(name.clone()));
        let value = contents.manifests.get(name).map(|there| there.value.clone());
        drop(contents);
        value.map(|value| value.read(manifest(name))).transpose()
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.contents().delete_manifest(name);
        Ok(())
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let contents = self.contents();
        let Some(there) = contents.manifests.get(name) else {
            return Ok(None);
        };
        let data = there.value.clone().read(manifest(name))?;
        Ok(Some((data, Revision::new(there.put))))
    }

    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        let mut contents = self.contents();
        let there = contents.manifests.get(name).map(|there| &there.put);
        let same = there.is_some() && there == revision.mark();
        Ok(same && contents.delete_manifest(name))
    }

    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        let contents = self.contents();
        let absent = hashes.iter().filter(|hash| contents.chunks.get(*hash).is_none_or(|chunk| chunk.damaged));
        Some(absent.copied().collect())
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

impl Plugin for MemoryStore {
    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Self::open_uri(uri, Self::cap_from_env()?)
    }
}
