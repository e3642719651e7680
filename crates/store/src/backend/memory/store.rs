//! A handle of a store in memory as a backend.

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

/// A handle of a store in memory. Its clones are handles of the same store, which goes with the last of them.
///
/// What is put is visible at once. When the cap is reached, what goes is decided by a [`Policy`](super::Policy) with a window
/// of 8: chunks that nothing refers to first, then manifests with the chunks that only they refer to.
/// Chunks that wait for their manifest are pinned. If that makes no room, a put fails with [`StoreError::Full`].
///
/// As a plugin its scheme is anything.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    contents: Mutex<Contents>,
    /// What the next manifest refers to without naming it.
    guard: Guard,
}

impl MemoryStore {
    /// The environment variable that says how much a store may take that is opened by a URI.
    pub const CAP_VARIABLE: &str = "TRANSLOAD_MEMORY_CAP";

    /// The cap in bytes of a store that is opened by a URI, unless something else is said.
    pub const DEFAULT_CAP: u64 = 4 << 30;

    /// A new, empty store without a cap.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new, empty store that takes no more than so many bytes.
    pub fn with_cap(cap: u64) -> Self {
        Self(Arc::new(Shared { contents: Mutex::new(Contents::new(cap)), guard: Guard::default() }))
    }

    /// The store of this URI in this process, made at the first call. It stays as long as the process.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if it is there with another cap.
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

    /// The cap that the environment names, or else [`DEFAULT_CAP`](Self::DEFAULT_CAP).
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if it is set to what is no size.
    pub(crate) fn cap_from_env() -> Result<u64, StoreError> {
        Ok(crate::size::from_env(Self::CAP_VARIABLE)?.unwrap_or(Self::DEFAULT_CAP))
    }

    /// Keeps a copy of a chunk that another store has: no manifest is to come, so that it may go at once.
    pub(in crate::backend) fn cache_chunk(&self, hash: &ChunkHash, data: Bytes) -> Result<Put, StoreError> {
        let value = Value::new(chunk(hash), data);
        self.contents().put_chunk(hash, value, false)
    }

    /// Drops a copy of a chunk that another store has, and whose bytes are wrong.
    pub(in crate::backend) fn drop_chunk(&self, hash: &ChunkHash) {
        self.contents().doubt_chunk(hash);
    }

    /// How many values were evicted since it was made.
    pub(in crate::backend) fn evictions(&self) -> u64 {
        self.contents().evictions
    }

    // Contents are whole between any two statements, so a panic elsewhere leaves nothing half done.
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
        // The copy is made without the lock.
        let known = self.contents().chunks.get(hash).cloned();
        let known = known.filter(|chunk| !chunk.damaged);
        let value = known.map_or_else(|| Value::new(chunk(hash), Bytes::copy_from_slice(data)), |chunk| chunk.value);
        let mut contents = self.contents();
        let put = contents.put_chunk(hash, value, true);
        match &put {
            Ok(_) => self.0.guard.put(hash),
            // Whoever has put some of a save and gets no further gives the room back.
            Err(_) => {
                let given_up = self.0.guard.needed([])?;
                contents.unpin(&given_up.chunks);
                let _told = self.0.guard.gone(&given_up, &given_up.chunks);
            }
        }
        put
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let mut contents = self.contents();
        contents.hit(&Key::Chunk(*hash));
        let there = contents.chunks.get(hash).cloned();
        // Checked without the lock.
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
