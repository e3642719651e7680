//! The objects of a namespace, and looking them up.

use std::sync::Arc;

use bytes::Bytes;
use transload_store::internal::readable;
use transload_store::{Backend, ManifestName, StoreError};

use super::error::ObjectError;
use super::name;
use super::record::{Info, Record};

/// The objects of one namespace in a store.
///
/// It is cheap to clone and can be used from any thread.
#[derive(Clone, Debug)]
pub struct Objects {
    pub(super) store: Arc<dyn Backend>,
    pub(super) namespace: Arc<[u8]>,
    pub(super) threads: usize,
}

/// The default number of threads that hash and copy for one call: one for each core of the machine, up to this number.
/// BLAKE3 processes about 3 GB/s a thread, and the engine needs its cores.
const DEFAULT_THREADS: usize = 4;

impl Objects {
    /// Returns the objects of a namespace.
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

    /// Sets the number of threads that hash and copy for one call (0 counts as 1).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Backend> {
        &self.store
    }

    /// Looks up objects, in one call of [`Backend::get_manifests`]. Pieces of an existing object may still be missing,
    /// which only a read finds.
    ///
    /// # Errors
    /// [`ObjectError::Key`], or an error of the store. An unreadable object counts as missing.
    pub fn has(&self, keys: &[&[u8]]) -> Result<Vec<Option<Info>>, ObjectError> {
        let found = self.find(keys, &self.names(keys)?)?;
        Ok(found.into_iter().map(|found| Some(found?.record.info())).collect())
    }

    /// Removes objects. A missing one is not an error. Pieces that nothing else needs are removed by the store's next
    /// collection.
    ///
    /// # Errors
    /// [`ObjectError::Key`], and then nothing was removed; or an error of the store, and then earlier objects may be
    /// removed.
    pub fn delete(&self, keys: &[&[u8]]) -> Result<(), ObjectError> {
        for name in self.names(keys)? {
            self.store.delete_manifest(&name)?;
        }
        Ok(())
    }

    pub(super) fn names(&self, keys: &[&[u8]]) -> Result<Vec<ManifestName>, ObjectError> {
        let names = keys.iter().enumerate().map(|(at, key)| {
            if !name::is_name(key) {
                return Err(ObjectError::Key { at, len: key.len() });
            }
            Ok(name::manifest(&self.namespace, key))
        });
        names.collect()
    }

    /// Returns the manifests of these keys. One that is unreadable or has another key counts as missing.
    /// They are requested from last to first: engines put the blocks of a prompt in order, stores evict what was unused
    /// for longest, and the end of a prompt is useless without its beginning.
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

#[derive(Debug)]
pub(super) struct Found {
    pub(super) manifest: Bytes,
    pub(super) record: Record,
}
