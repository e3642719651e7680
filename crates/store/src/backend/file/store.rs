//! The file store's handle, which implements [`Backend`].

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::disk::{Disk, File};
use super::format::manifest::Manifest;
use super::index::Index;
use super::locks::{Locks, Turns};
use super::options::FileOptions;
use super::pending::{Pending, is_there};
use super::space::Space;
use super::{format, paths, root};
use crate::backend::{Backend, Inventory, Put, Revision};
use crate::error::StoreError;
use crate::export::Plugin;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// A handle on a store in a folder.
///
/// Any number of handles, in any number of processes on one machine, can use a store at once. When
/// [`put_manifest`](Backend::put_manifest) has returned, the manifest and its chunks are durable: they survive a loss
/// of power, as far as the disk keeps flushed data.
pub struct FileStore {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) index: Index,
    pub(super) locks: Locks,
    pub(super) space: Space,
    pub(super) pending: Pending,
    /// Allows one publication at a time, because a later one relies on the chunks of an earlier one.
    pub(super) publishing: Turns,
    pub(super) options: FileOptions,
    /// The prefix of the names of manifests: empty, or with a `/` at its end.
    pub(super) prefix: String,
}

/// The revision of a manifest. Another put makes another file. A put that finds the same manifest updates the time.
pub(super) struct FileRevision {
    pub(super) file: Box<dyn File>,
    pub(super) modified: SystemTime,
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("disk", &self.disk)
            .field("prefix", &self.prefix)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if let Some(pack) = self.pending.unpublished() {
            // If this fails, the next open or collection removes the file.
            let _ = self.space.remove(&pack.path);
        }
    }
}

impl FileStore {
    /// Opens the store in the folder `path`, which must be absolute, or creates it there. If a parent folder is a
    /// store, that store is opened, and the rest of the path becomes a prefix of names: in `slot1`, manifest `m` is
    /// manifest `slot1/m` of the root.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the path cannot be a store's, or if the folder is neither empty nor a store;
    /// [`StoreError::Damaged`] if the store cannot be read.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, StoreError> {
        let root = root::open(path.as_ref(), options.group)?;
        Self::on_disk(root.disk, &root.prefix, options)
    }

    /// Opens a store like [`open`](Self::open), but never creates one. A store that is not writable, because of the
    /// file system or for lack of permission, can be read, listed and verified; writes fail.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and [`StoreError::NotThere`] if neither the folder nor one above it is a
    /// store.
    pub fn open_existing(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, StoreError> {
        let root = root::open_existing(path.as_ref())?;
        Self::on_disk(root.disk, &root.prefix, options)
    }

    /// Opens `file:///absolute/path`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and [`StoreError::Uri`] if the URI has another form.
    pub fn open_uri(uri: &StoreUri, options: FileOptions) -> Result<Self, StoreError> {
        Self::open(path_of(uri)?, options)
    }

    /// Opens a store like [`open_uri`](Self::open_uri), but never creates one.
    ///
    /// # Errors
    /// The errors of [`open_existing`](Self::open_existing) and [`open_uri`](Self::open_uri).
    pub fn open_existing_uri(uri: &StoreUri, options: FileOptions) -> Result<Self, StoreError> {
        Self::open_existing(path_of(uri)?, options)
    }

    pub(super) fn on_disk(disk: Arc<dyn Disk>, prefix: &str, options: FileOptions) -> Result<Self, StoreError> {
        root::check_marker(&*disk)?;
        let locks = Locks::new(disk.clone(), options.lock_timeout);
        let store = Self {
            index: Index::open(disk.clone())?,
            space: Space::open(disk.clone(), locks.clone(), options.cap)?,
            locks,
            disk,
            pending: Pending::default(),
            publishing: Turns::default(),
            options,
            prefix: match prefix {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
        };
        match store.tidy() {
            // The store can be read as it is. A collection tries the recovery again and reports the error.
            Err(StoreError::Io { .. }) => {}
            other => other?,
        }
        Ok(store)
    }

    pub(super) fn full_name(&self, name: &ManifestName) -> Result<String, StoreError> {
        let full = ManifestName::new(format!("{}{name}", self.prefix))?;
        Ok(full.as_str().to_owned())
    }

    /// Reads a manifest, updates its last-used time and calls `then`. The name includes the handle's prefix. An empty
    /// file is no manifest.
    fn with_manifest<T>(
        &self,
        name: &str,
        then: impl FnOnce(&dyn File, Manifest<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.look_at_manifest(name, |file, manifest| {
            let now = self.disk.now();
            if file.stat().is_ok_and(|stat| is_older(now, stat.modified)) {
                // This fails if the file belongs to another user. Then the manifest looks older than it is.
                let _ = file.touch(now);
            }
            then(&*file, manifest)
        })
    }

    /// Reads a manifest like [`with_manifest`](Self::with_manifest), without updating its last-used time.
    pub(super) fn look_at_manifest<T>(
        &self,
        name: &str,
        then: impl FnOnce(Box<dyn File>, Manifest<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let damaged = |how: String| StoreError::Damaged { what: format!("manifest {name:?}"), how };
        self.index.close_gone();
        let read = self
            .open_manifest(&paths::manifest(name))
            .and_then(|file| Ok((file.read_all(format::manifest::LONGEST)?, file)));
        let (bytes, file) = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(damaged(error.to_string()));
            }
            other => other.map_err(StoreError::io(format!("read manifest {name:?}")))?,
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        let manifest = Manifest::decode(&bytes).map_err(|flaw| damaged(flaw.to_string()))?;
        if manifest.name != name {
            return Err(damaged(format!("its file is that of {:?}", manifest.name)));
        }
        Ok(Some(then(file, manifest)))
    }
}

fn path_of(uri: &StoreUri) -> Result<&Path, StoreError> {
    if uri.scheme() != "file" || !uri.rest().starts_with('/') {
        return Err(uri.wrong("a file store is written file:///absolute/path").into());
    }
    Ok(Path::new(uri.rest()))
}

/// Tells whether a last-used time is old enough to be updated, which takes 2 us. 10 ms is short enough to keep the
/// order of uses, and long enough that readers of one manifest do not write all the time.
fn is_older(now: std::time::SystemTime, noted: std::time::SystemTime) -> bool {
    now.duration_since(noted).map_or(true, |age| age >= Duration::from_millis(10))
}

impl Backend for FileStore {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        if is_there(&self.index, hash)? {
            self.pending.refer(hash);
            return Ok(Put::AlreadyThere);
        }
        self.pending.put(&self.disk, &self.space, hash, data, |bytes| self.evict(bytes))
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        match self.pending.get(hash)? {
            Some(bytes) => Ok(Some(bytes)),
            None => self.index.get(hash),
        }
    }

    /// The manifest is durable when this returns. That takes four flushes, two if no chunk is new, and none if the same
    /// manifest exists and refers to everything that was put.
    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        self.publish(&[(self.full_name(name)?, data)])
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        self.with_manifest(&self.full_name(name)?, |_, manifest| Bytes::copy_from_slice(manifest.data))
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        self.remove_manifest(&self.full_name(name)?)
    }

    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        let read = self.look_at_manifest(&self.full_name(name)?, |file, there| {
            let modified = file.stat()?.modified;
            let data = Bytes::copy_from_slice(there.data);
            Ok((data, Revision::new(FileRevision { file, modified })))
        })?;
        read.transpose().map_err(StoreError::io(format!("look at manifest {:?}", name.as_str())))
    }

    fn delete_revision(&self, name: &ManifestName, revision: &Revision) -> Result<bool, StoreError> {
        self.remove_revision(&self.full_name(name)?, revision)
    }

    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        self.index.will_need(hashes);
        Ok(())
    }

    fn absent_chunks(&self, hashes: &[ChunkHash]) -> Option<Vec<ChunkHash>> {
        let there = |hash: &ChunkHash| self.pending.has(hash) || is_there(&self.index, hash).unwrap_or(false);
        let absent = hashes.iter().filter(|hash| !there(hash));
        Some(absent.copied().collect())
    }

    /// A batch takes one flush of each folder for 256 manifests, and at most one more. Other handles see the manifests
    /// in the order of the list. After a loss of power the last one exists only if all others do; there is no order
    /// among the others.
    fn put_manifests(&self, manifests: &[(ManifestName, Bytes)]) -> Result<(), StoreError> {
        let named: Result<Vec<_>, StoreError> =
            manifests.iter().map(|(name, data)| Ok((self.full_name(name)?, &data[..]))).collect();
        match &named? {
            none if none.is_empty() => Ok(()),
            some => self.publish(some),
        }
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

/// Opens stores with [`FileOptions::from_env`].
impl Plugin for FileStore {
    const PREFETCH: bool = true;

    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Self::open_uri(uri, FileOptions::from_env()?)
    }
}
