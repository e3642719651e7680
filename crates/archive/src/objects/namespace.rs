//! The objects of one namespace, and looking them up.

use std::sync::Arc;

use bytes::Bytes;
use transload_store::internal::readable;
use transload_store::{Backend, ManifestName, StoreError};

use super::error::ObjectError;
use super::name;
use super::record::{Info, Record};

/// The objects of one namespace in a store.
///
/// Cheap to clone; to be used from any thread.
#[derive(Clone, Debug)]
pub struct Objects {
    pub(super) store: Arc<dyn Backend>,
    pub(super) namespace: Arc<[u8]>,
    pub(super) threads: usize,
}

/// How many threads hash and copy for one call, unless told otherwise: as many as the machine has cores, and at most so
/// many. BLAKE3 makes some 3 GB/s a thread, and the engine beside it needs its cores.
const DEFAULT_THREADS: usize = 4;

impl Objects {
    /// The objects of a namespace.
    ///
    /// # Errors
    /// [`ObjectError::Namespace`] unless it has 1 to 4,096 bytes.
    pub fn new(store: Arc<dyn Backend>, namespace: &[u8]) -> Result<Self, ObjectError> {
        if !name::is_name(namespace) {
            return Err(ObjectError::Namespace { len: namespace.len() });
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { store, namespace: namespace.into(), threads: cores.min(DEFAULT_THREADS) })
    }

    /// How many threads hash and copy for one call (0 counts as 1).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The store that they are in.
    pub fn store(&self) -> &Arc<dyn Backend> {
        &self.store
    }

    /// Looks objects up, in one call of [`Backend::get_manifests`]. What is there may still turn out to have lost pieces
    /// when it is read.
    ///
    /// # Errors
    /// [`ObjectError::Key`], or if the store fails. What cannot be read is not there.
    pub fn has(&self, keys: &[&[u8]]) -> Result<Vec<Option<Info>>, ObjectError> {
        let found = self.find(keys, &self.names(keys)?)?;
        Ok(found.into_iter().map(|found| Some(found?.record.info())).collect())
    }

    /// Removes objects; not an error if there are none. Pieces that nothing else needs go with the store's next
    /// collection.
    ///
    /// # Errors
    /// [`ObjectError::Key`], and then nothing was removed; or if the store fails, and then those before may be gone.
    pub fn delete(&self, keys: &[&[u8]]) -> Result<(), ObjectError> {
        for name in self.names(keys)? {
            self.store.delete_manifest(&name)?;
        }
        Ok(())
    }

    /// The names of the manifests of these keys.
    pub(super) fn names(&self, keys: &[&[u8]]) -> Result<Vec<ManifestName>, ObjectError> {
        let names = keys.iter().enumerate().map(|(at, key)| {
            if !name::is_name(key) {
                return Err(ObjectError::Key { at, len: key.len() });
            }
            Ok(name::manifest(&self.namespace, key))
        });
        names.collect()
    }

    /// The manifests of these keys. One that cannot be read, or is of another key, is not there.
    ///
    /// They are asked for from the last on: engines put the blocks of a prompt in their order, stores evict what was not
    /// used for longest, and the end of a prompt is of no use without its beginning.
    pub(super) fn find(&self, keys: &[&[u8]], names: &[ManifestName]) -> Result<Vec<Option<Found>>, StoreError> {
        let names: Vec<ManifestName> = names.iter().rev().cloned().collect();
        let manifests = readable(&names, |names| self.store.get_manifests(names))?;
        let found = manifests.into_iter().rev().zip(keys).map(|(manifest, key)| {
            let manifest = manifest?;
            let record = Record::decode(&manifest).ok()?;
            let is_its = record.namespace[..] == *self.namespace && record.key == *key;
            is_its.then_some(Found { manifest, record })
        });
        Ok(found.collect())
    }
}

/// An object's manifest.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) manifest: Bytes,
    pub(super) record: Record,
}
