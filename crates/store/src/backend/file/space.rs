//! The size cap: accounting of the space that the store's files take.
//!
//! Before a file is written, it is extended (`ftruncate`) to its final size. This happens under the lock of the file
//! `usage`, which holds the sum of all sizes. Growth is added before it happens, and shrinkage is subtracted
//! afterwards. So after a crash the sum may be too high and is never too low. When the sum leaves no room, or when a
//! handle is opened, the files are counted instead. Handles without a cap do none of this.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, File, unless_unwritable};
use super::format::{once, twice};
use super::locks::Locks;
use super::paths;
use crate::error::StoreError;

#[derive(Debug)]
pub(super) struct Space {
    disk: Arc<dyn Disk>,
    locks: Locks,
    cap: Option<u64>,
}

impl Space {
    pub(super) fn open(disk: Arc<dyn Disk>, locks: Locks, cap: Option<u64>) -> Result<Self, StoreError> {
        let this = Self { disk, locks, cap };
        if cap.is_some() {
            unless_unwritable(this.recount())?;
        }
        Ok(this)
    }

    fn recount(&self) -> Result<(), StoreError> {
        let accounts = self.locks.usage()?;
        self.write(&*accounts, self.count()?)
    }

    pub(super) fn cap(&self) -> Option<u64> {
        self.cap
    }

    /// Returns how many bytes a pack should grow at once, so that not every chunk takes the lock.
    pub(super) fn slab(&self) -> u64 {
        self.cap.map_or(0, |cap| (cap / 64).min(64 << 20))
    }

    /// Extends a file without writing to it. Returns `false` if that would exceed the cap.
    pub(super) fn grow(&self, file: &dyn File, from: u64, to: u64) -> Result<bool, StoreError> {
        let Some(cap) = self.cap else {
            return Ok(true);
        };
        if to <= from {
            return Ok(true);
        }
        let accounts = self.locks.usage()?;
        let more = to - from;
        let fits = |used: u64| used.checked_add(more).filter(|&sum| sum <= cap);
        let sum = match self.read(&*accounts).and_then(fits) {
            Some(sum) => sum,
            None => match fits(self.count()?) {
                Some(sum) => sum,
                None => return Ok(false),
            },
        };
        self.write(&*accounts, sum)?;
        file.set_len(to).map_err(StoreError::io("extend a temporary file"))?;
        Ok(true)
    }

    /// Runs a change that frees space, and accounts for the bytes that it returns.
    pub(super) fn shrink(&self, change: impl FnOnce() -> Result<u64, StoreError>) -> Result<u64, StoreError> {
        if self.cap.is_none() {
            return change();
        }
        let accounts = self.locks.usage()?;
        let freed = change()?;
        if let Some(used) = self.read(&*accounts) {
            self.write(&*accounts, used.saturating_sub(freed))?;
        }
        Ok(freed)
    }

    pub(super) fn remove(&self, path: &str) -> Result<u64, StoreError> {
        self.shrink(|| {
            let removed = self.disk.stat(path).and_then(|stat| {
                self.disk.unlink(path)?;
                Ok(stat.len)
            });
            match removed {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
                other => other.map_err(StoreError::io(format!("remove {path}"))),
            }
        })
    }

    /// Returns the total size of all files. A file that moves meanwhile may count twice but is never missed: files move
    /// out of the temporary folder, which is counted first.
    pub(super) fn count(&self) -> Result<u64, StoreError> {
        let folders =
            [paths::TEMPORARY.to_owned()].into_iter().chain(paths::pack_folders()).chain(paths::manifest_folders());
        let mut sum = 0_u64;
        let mut add = |path: &str| match self.disk.stat(path) {
            Ok(stat) => {
                sum = sum.saturating_add(stat.len);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::io(format!("look at {path}"))(error)),
        };
        for folder in folders {
            let names = self.disk.list(&folder);
            for name in names.map_err(StoreError::io(format!("list {folder}")))? {
                add(&format!("{folder}/{name}"))?;
            }
        }
        for path in paths::ROOT_FILES.into_iter().chain([paths::MARKER]) {
            add(path)?;
        }
        Ok(sum)
    }

    pub(super) fn is_whole(&self) -> Result<bool, StoreError> {
        let accounts = self.locks.usage_to_read()?;
        Ok(self.read(&*accounts).is_some())
    }

    fn read(&self, accounts: &dyn File) -> Option<u64> {
        let mut sum = [0; 16];
        accounts.read_exact_at(&mut sum, 0).ok()?;
        once(sum)
    }

    fn write(&self, accounts: &dyn File, sum: u64) -> Result<(), StoreError> {
        accounts.write_all_at(&twice(sum), 0).map_err(StoreError::io(format!("write {}", paths::USAGE)))
    }
}
