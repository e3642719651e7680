//! Replacement and removal of a manifest's file, so that a single flush makes the change durable.
//!
//! A manifest lies at `HEX`. To write its directory entry again, the file is moved to `HEX.away` and back, which takes
//! no space. A removal also goes through that name. Both names are in one folder, so one flush settles both: an entry
//! that an earlier, failed flush left under one name does not come back when the other is gone.

use std::io;

use super::FileStore;
use super::disk::{File, How, Stat};
use super::paths;
use super::pending::create_temporary;
use crate::error::StoreError;

impl FileStore {
    /// Opens a manifest's file. If it is at neither name, it may have moved back, so the first name is tried again.
    pub(super) fn open_manifest(&self, path: &str) -> io::Result<Box<dyn File>> {
        for name in [path, &paths::away(path)] {
            match self.disk.open(name, How::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
        }
        self.disk.open(path, How::Read)
    }

    pub(super) fn replace(&self, from: &str, path: &str) -> Result<u64, StoreError> {
        self.space.shrink(|| {
            let before = self.length(path);
            let moved = self.disk.rename(from, path);
            moved.map_err(StoreError::io(format!("move {from} to {path}")))?;
            Ok(before)
        })
    }

    /// Writes the current state of a manifest, present or not, once more. The next flush of its folder makes that
    /// durable. The caller keeps others from publishing meanwhile.
    pub(super) fn put_again(&self, path: &str) -> Result<(), StoreError> {
        let failed = || StoreError::io(format!("publish {path} once more"));
        let away = paths::away(path);
        let stat = |path: &str| match self.disk.stat(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).map_err(failed()),
        };
        let (here, there) = (stat(path)?, stat(&away)?);
        // An empty file is no manifest.
        let bytes = |stat: Option<Stat>| stat.map_or(0, |stat| stat.len);
        if here.is_some_and(|stat| !stat.regular) {
            // Leave it for verifying to report.
            return Ok(());
        }
        let put = if bytes(here) > 0 {
            self.space.shrink(|| {
                self.drop_away(&away)?;
                let moved = self.disk.rename(path, &away);
                let moved = moved.and_then(|()| self.disk.rename(&away, path));
                moved.map_err(failed())?;
                Ok(bytes(there))
            })
        } else if here.is_none() && bytes(there) > 0 {
            // An earlier call died between its two moves.
            self.replace(&away, path)
        } else {
            self.erase(path)
        };
        put.map(drop)
    }

    /// Removes a manifest's file and returns the bytes reclaimed. If there is none, an empty file, which is not a
    /// manifest, takes its place first: an earlier removal may not have been flushed, and a flush only writes changes.
    pub(super) fn erase(&self, path: &str) -> Result<u64, StoreError> {
        let away = paths::away(path);
        self.space.shrink(|| {
            let freed = self.length(path) + self.length(&away);
            self.drop_away(&away)?;
            // Remove anything that is not a regular file in place, if possible. A folder cannot be removed.
            let is_file = self.disk.stat(path).map_or(true, |stat| stat.regular);
            let last = if is_file { &*away } else { path };
            while is_file && let Err(error) = self.disk.rename(path, &away) {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(StoreError::io(format!("move {path} away"))(error));
                }
                self.put_none(path)?;
            }
            self.drop_away(last)?;
            Ok(freed)
        })
    }

    /// Puts an empty file in the place of a missing manifest: a hard link, since there may be no room for another file.
    fn put_none(&self, path: &str) -> Result<(), StoreError> {
        match self.disk.link(paths::STORE_LOCK, path) {
            Ok(()) => return Ok(()),
            // Another process has put it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(_) => {}
        }
        // The file system has no hard links, or not to another user's file.
        let (empty, _file) = create_temporary(&*self.disk, "manifest")?;
        let moved = self.disk.rename(&empty, path);
        moved.map_err(StoreError::io(format!("move {empty} to {path}")))
    }

    /// Removes the file at the other name, if there is one. It must go even while the manifest is in place: if both
    /// names were links to one file, a rename would do nothing.
    fn drop_away(&self, path: &str) -> Result<(), StoreError> {
        match self.disk.unlink(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(StoreError::io(format!("remove {path}"))),
        }
    }

    fn length(&self, path: &str) -> u64 {
        self.disk.stat(path).map_or(0, |stat| stat.len)
    }
}
