//! A store in memory that loses and damages chunks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use transload_store::backend::{MemoryStore, Revision};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};
use transload_test_stores::forward;

/// The state of a lost or damaged chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Lost,
    /// It reads as these bytes.
    Other(Bytes),
    /// The store finds that it is damaged.
    Refused,
    /// The store returns an error when it is asked.
    Silent,
}

/// The condition for a damaged chunk to be written again when it is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Heals {
    /// It was read since, as in our backends.
    #[default]
    Read,
    Never,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Flawed {
    pub(crate) store: MemoryStore,
    /// The flaws, each with whether the chunk was read since.
    pub(crate) flaws: Mutex<HashMap<ChunkHash, (Flaw, bool)>>,
    pub(crate) heals: Heals,
    pub(crate) no_revisions: bool,
    /// An event just before a manifest's revision is looked up.
    pub(crate) meanwhile: Mutex<Option<Meanwhile>>,
    pub(crate) look_ups: Mutex<u32>,
    /// The number of the next manifests for which a collection has removed their chunks.
    pub(crate) collections: Mutex<u32>,
}

#[derive(Clone, Debug)]
pub(crate) enum Meanwhile {
    /// The same manifest is put again, between the look-up and the removal.
    Puts,
    /// All chunks are repaired.
    Mends,
    /// The store returns errors for the chunks.
    Silences,
}

impl Flawed {
    pub(crate) fn spoil(&self, hash: ChunkHash, flaw: Flaw) {
        self.flaws().insert(hash, (flaw, false));
    }

    fn flaws(&self) -> MutexGuard<'_, HashMap<ChunkHash, (Flaw, bool)>> {
        self.flaws.lock().unwrap()
    }
}

impl Backend for Flawed {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let mut flaws = self.flaws();
        let is_mended = match flaws.get(hash) {
            None => return self.store.put_chunk(hash, data),
            Some((Flaw::Lost, _)) => true,
            Some((_, was_read)) => *was_read && self.heals == Heals::Read,
        };
        if is_mended {
            flaws.remove(hash);
            return Ok(Put::Stored);
        }
        Ok(Put::AlreadyThere)
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let mut flaws = self.flaws();
        let Some((flaw, was_read)) = flaws.get_mut(hash) else {
            return self.store.get_chunk(hash);
        };
        *was_read = true;
        match flaw {
            Flaw::Lost => Ok(None),
            Flaw::Other(bytes) => Ok(Some(bytes.clone())),
            Flaw::Refused => {
                Err(StoreError::Damaged { what: format!("chunk {hash}"), how: "a test says so".to_owned() })
            }
            Flaw::Silent => Err(StoreError::remote("get a chunk", "nobody answers")),
        }
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let mut collections = self.collections.lock().unwrap();
        if *collections > 0 {
            *collections -= 1;
            let hash = ChunkHash::from([0; 32]);
            return Err(StoreError::Collected { hash });
        }
        self.store.put_manifest(name, data)
    }

    fn get_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        *self.look_ups.lock().unwrap() += 1;
        self.store.get_manifests(names)
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        if self.no_revisions {
            return Err(StoreError::Unsupported {
                what: "telling two puts of a manifest apart",
                why: "a test says so".to_owned(),
            });
        }
        let found = self.store.manifest_revision(name);
        match self.meanwhile.lock().unwrap().take() {
            None => {}
            Some(Meanwhile::Puts) => {
                let there = self.store.get_manifest(name)?.unwrap();
                self.store.put_manifest(name, &there)?;
            }
            Some(Meanwhile::Mends) => self.flaws().clear(),
            Some(Meanwhile::Silences) => {
                self.flaws().values_mut().for_each(|flaw| flaw.0 = Flaw::Silent);
            }
        }
        found
    }

    forward!(store: get_manifest, delete_manifest, delete_revision);
}
