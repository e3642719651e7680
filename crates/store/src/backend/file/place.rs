//! The place of a manifest, and the name that it has on its way from there and back.
//!
//! A manifest lies at `HEX`. What has to be changed once more is moved to `HEX.away` and back, which takes no room, and
//! what is removed goes by way of that name. Both are in one folder, so one flush settles both: what an earlier one, which
//! failed, has left under the one name does not come back when the other one is gone.

use std::io;

use super::FileStore;
use super::disk::{File, How, Stat};
use super::paths;
use super::pending::create_temporary;
use crate::error::StoreError;

impl FileStore {
    /// Opens a manifest's file. What is not in its place may be away, and back before one has looked there.
    pub(super) fn open_manifest(&self, path: &str) -> io::Result<Box<dyn File>> {
        for name in [path, &paths::away(path)] {
            match self.disk.open(name, How::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
        }
        self.disk.open(path, How::Read)
    }

    /// Moves a file to the place of a manifest.
    pub(super) fn replace(&self, from: &str, path: &str) -> Result<u64, StoreError> {
        self.space.shrink(|| {
            let before = self.length(path);
            let moved = self.disk.rename(from, path);
            moved.map_err(StoreError::io(format!("move {from} to {path}")))?;
            Ok(before)
        })
    }

    /// Puts what can be seen of a manifest in its place once more, be it that there is none; the next flush of its
    /// folder makes that durable. Nobody may publish meanwhile.
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
            // What is no file is for verifying to find.
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
            // Whoever did this before died in between.
            self.replace(&away, path)
        } else {
            self.erase(path)
        };
        put.map(drop)
    }

    /// Removes a manifest's file and says how many bytes that gives back. If there is none, an empty file, which is no
    /// manifest, takes its place first: whoever removed it may have failed to flush that, and only a change is flushed.
    pub(super) fn erase(&self, path: &str) -> Result<u64, StoreError> {
        let away = paths::away(path);
        self.space.shrink(|| {
            let freed = self.length(path) + self.length(&away);
            self.drop_away(&away)?;
            // What is no file is removed where it lies, if that can be: a folder cannot.
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

    /// Puts an empty file in the place of a manifest that is not there: one that is there already, by a second name,
    /// since there may be no room for a file more.
    fn put_none(&self, path: &str) -> Result<(), StoreError> {
        match self.disk.link(paths::STORE_LOCK, path) {
            Ok(()) => return Ok(()),
            // Somebody has put it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(_) => {}
        }
        // There are no links here, or not to another user's file.
        let (empty, _file) = create_temporary(&*self.disk, "manifest")?;
        let moved = self.disk.rename(&empty, path);
        moved.map_err(StoreError::io(format!("move {empty} to {path}")))
    }

    /// Removes what has gone this far, or what lies there while nothing is away: were it the same file, nothing would
    /// move. Another one may have done it.
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
