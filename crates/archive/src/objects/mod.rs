//! Bytes of an engine under the engine's own keys.
//!
//! Some engines name what they cache by hashes of their own, and keep it in a layout that nobody else reads. To a store
//! that is an *object*: bytes under a key, and up to 4 KiB of *meta* beside them, in which the engine writes what it needs
//! to read them (a shape, a dtype). Here such engines get what stores have: bytes that several objects share are kept once,
//! a cap, a damaged byte that is a miss and not data, and `transload store` to look into it.
//!
//! An object is one manifest and its *pieces*, store chunks of 4 MiB (the last one shorter) under the BLAKE3-256 of their
//! bytes. All calls take batches, and none holds more of an object in memory than a few pieces for each thread.
//!
//! - Keys are any 1 to 4,096 bytes. So is the *namespace*, which is a part of every name. An engine whose keys stay the same
//!   while its weights change has to change the namespace with them.
//! - An object is taken to be decided by its key, length and meta: [`put`](Objects::put) writes nothing if an object of
//!   equal length and meta is there, and replaces any other.
//! - [`get`](Objects::get) checks every piece against its hash.
//!
//! ```
//! use std::sync::Arc;
//! use transload_store::backend::MemoryStore;
//! use transload_archive::objects::{Objects, Source, Target};
//!
//! let objects = Objects::new(Arc::new(MemoryStore::new()), b"llama-3.1-8b@r1")?;
//! let (keys, values) = ([1; 1000], [2; 500]);
//! objects.put(&[Source { key: b"block 7", meta: b"bf16", parts: &[(&keys).into(), (&values).into()] }])?;
//!
//! let found = objects.has(&[b"block 7", b"block 8"])?;
//! assert_eq!(found[0].as_ref().map(|info| info.bytes), Some(1500));
//! assert_eq!(found[1], None);
//!
//! let mut block = [0; 1500];
//! let mut parts = [(&mut block).into()];
//! let read = objects.get(&mut [Target { key: b"block 7", parts: &mut parts }])?;
//! assert_eq!(read[0].as_ref().map(|info| &info.meta[..]), Some(&b"bf16"[..]));
//! assert_eq!(block[999..1001], [1, 2]);
//! # Ok::<(), transload_archive::objects::ObjectError>(())
//! ```

mod error;
mod get;
mod list;
mod name;
mod part;
mod put;
mod record;

use std::sync::Arc;

use bytes::Bytes;
use transload_store::{Backend, ManifestName, StoreError, readable};

pub use error::ObjectError;
pub use get::Target;
pub use list::Listed;
pub use name::{LONGEST_NAME, NAMES};
pub use part::{Part, PartMut};
pub use put::Source;
pub use record::{LARGEST, LONGEST_META, PIECE, Record};

/// The objects of one namespace in a store.
///
/// Cheap to clone; to be used from any thread.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn Backend>,
    namespace: Arc<[u8]>,
    threads: usize,
}

/// What is known of an object without reading its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Its length in bytes.
    pub bytes: u64,
    /// What its engine put beside it.
    pub meta: Vec<u8>,
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
            return Err(ObjectError::Namespace {
                len: namespace.len(),
            });
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            store,
            namespace: namespace.into(),
            threads: cores.min(DEFAULT_THREADS),
        })
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
        Ok(found
            .into_iter()
            .map(|found| Some(found?.record.info()))
            .collect())
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
    fn names(&self, keys: &[&[u8]]) -> Result<Vec<ManifestName>, ObjectError> {
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
    fn find(
        &self,
        keys: &[&[u8]],
        names: &[ManifestName],
    ) -> Result<Vec<Option<Found>>, StoreError> {
        let names: Vec<ManifestName> = names.iter().rev().cloned().collect();
        let manifests = readable(&names, |names| self.store.get_manifests(names))?;
        let found = manifests
            .into_iter()
            .rev()
            .zip(keys)
            .map(|(manifest, key)| {
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
struct Found {
    manifest: Bytes,
    record: Record,
}
