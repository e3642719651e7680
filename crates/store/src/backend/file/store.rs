//! A handle of a store in a folder as a backend.

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
/// Any number of handles, in any number of processes on one machine, work on one store at once. Acknowledged
/// means durable: when [`put_manifest`](Backend::put_manifest) has returned, the manifest and its chunks
/// survive the loss of power, as far as the disk keeps what it has flushed.
pub struct FileStore {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) index: Index,
    pub(super) locks: Locks,
    pub(super) space: Space,
    pub(super) pending: Pending,
    /// One publication at a time on a handle: a later one relies on the chunks of an earlier one.
    pub(super) publishing: Turns,
    pub(super) options: FileOptions,
    /// In front of the names of manifests, with a `/` at its end, or empty.
    pub(super) prefix: String,
}

/// Which put of a manifest was read: another put is another file, and finding the file as it would be put notes a use.
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
            // If this fails, the next one who opens or collects removes it.
            let _ = self.space.remove(&pack.path);
        }
    }
}

impl FileStore {
    /// Opens the store in the folder `path`, an absolute one, or makes it there. If a folder above it is a
    /// store, it is that store, and the rest of the path goes in front of the names of manifests: `slot1` and
    /// manifest `m` are manifest `slot1/m` of the root.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the path cannot be a store's, or a folder is there that is none and not
    /// empty; [`StoreError::Damaged`] if what is there cannot be read.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, StoreError> {
        let root = root::open(path.as_ref(), options.group)?;
        Self::on_disk(root.disk, &root.prefix, options)
    }

    /// As [`open`](Self::open), but never makes a store. One that cannot be written, because of the file system or
    /// for lack of permission, can be read, listed and verified; a write fails.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`StoreError::NotThere`] if neither the folder nor one above it is a store.
    pub fn open_existing(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, StoreError> {
        let root = root::open_existing(path.as_ref())?;
        Self::on_disk(root.disk, &root.prefix, options)
    }

    /// Opens `file:///absolute/path`.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`StoreError::Uri`] if the URI is another one.
    pub fn open_uri(uri: &StoreUri, options: FileOptions) -> Result<Self, StoreError> {
        Self::open(path_of(uri)?, options)
    }

    /// As [`open_uri`](Self::open_uri), but never makes a store.
    ///
    /// # Errors
    /// As [`open_existing`](Self::open_existing) and [`open_uri`](Self::open_uri).
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
            // What fails now is tried again by whoever collects, and an error for him. It can all be read as it is.
            Err(StoreError::Io { .. }) => {}
            other => other?,
        }
        Ok(store)
    }

    /// What the store calls the manifest that this handle calls `name`.
    pub(super) fn full_name(&self, name: &ManifestName) -> Result<String, StoreError> {
        let full = ManifestName::new(format!("{}{name}", self.prefix))?;
        Ok(full.as_str().to_owned())
    }

    /// Reads a manifest, named in full, notes that it was used, and calls `then` with it. An empty file is none.
    fn with_manifest<T>(
        &self,
        name: &str,
        then: impl FnOnce(&dyn File, Manifest<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.look_at_manifest(name, |file, manifest| {
            let now = self.disk.now();
            if file.stat().is_ok_and(|stat| is_older(now, stat.modified)) {
                // It may be another user's file. Then it looks older than it is.
                let _ = file.touch(now);
            }
            then(&*file, manifest)
        })
    }

    /// Reads a manifest as [`with_manifest`](Self::with_manifest) does, without noting that it was used.
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

/// The folder that `file:///absolute/path` names.
fn path_of(uri: &StoreUri) -> Result<&Path, StoreError> {
    if uri.scheme() != "file" || !uri.rest().starts_with('/') {
        return Err(uri.wrong("a file store is written file:///absolute/path").into());
    }
    Ok(Path::new(uri.rest()))
}

/// Whether a time is so long ago that a use is worth noting: short enough that what is read in some order later
/// goes in that order (noting takes 2 us), long enough that readers of one manifest do not write all the time.
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

    /// Durable when it returns: four flushes, two if no chunk is new, none if the same manifest is there and
    /// refers to what was put.
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

    /// One flush of each folder for 256 of them, and no more than one further. Seen by others in the order of
    /// the list; after a loss of power the last one is there only if all others are, and which of the others
    /// are has no order.
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

/// With [`FileOptions::from_env`].
impl Plugin for FileStore {
    const PREFETCH: bool = true;

    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Self::open_uri(uri, FileOptions::from_env()?)
    }
}
