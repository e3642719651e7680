//! Who may publish and who may collect, among all threads of all processes.
//!
//! Publishing holds `store.lock` shared, collecting holds it exclusively. Whoever wants it holds `gate.lock`
//! until it has it, so a collection that waits keeps newcomers behind it and comes to its turn. Each lock
//! belongs to a file opened for it (`flock`), so threads exclude each other as processes do, and a process
//! that dies gives its locks back.

use std::sync::Arc;

use super::disk::{Disk, File, How, Lock, open_to_lock};
use super::paths;
use crate::error::StoreError;

/// A lock, held until it is dropped.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub(super) struct Held {
    _file: Box<dyn File>,
}

#[derive(Clone, Debug)]
pub(super) struct Locks {
    disk: Arc<dyn Disk>,
}

impl Locks {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk }
    }

    /// Waits until no collection runs and keeps them away.
    pub(super) fn publishing(&self) -> Result<Held, StoreError> {
        let _gate = self.wait(paths::GATE_LOCK, Lock::Exclusive)?;
        self.wait(paths::STORE_LOCK, Lock::Shared)
    }

    /// Waits until nobody publishes or collects and keeps them away.
    pub(super) fn collecting(&self) -> Result<Held, StoreError> {
        let _gate = self.wait(paths::GATE_LOCK, Lock::Exclusive)?;
        self.wait(paths::STORE_LOCK, Lock::Exclusive)
    }

    /// As [`collecting`](Self::collecting), if nobody is in the way.
    pub(super) fn try_collecting(&self) -> Result<Option<Held>, StoreError> {
        let taken = (|| {
            let gate = open_to_lock(&*self.disk, paths::GATE_LOCK)?;
            let store = open_to_lock(&*self.disk, paths::STORE_LOCK)?;
            let both = gate.try_lock()? && store.try_lock()?;
            Ok(both.then_some(Held { _file: store }))
        })();
        taken.map_err(StoreError::io("lock the store"))
    }

    /// Waits for the accounts of the cap, for a change of them.
    pub(super) fn usage(&self) -> Result<Box<dyn File>, StoreError> {
        let locked = self.disk.open(paths::USAGE, How::Write).and_then(|file| {
            file.lock(Lock::Exclusive)?;
            Ok(file)
        });
        locked.map_err(StoreError::io(format!("lock {}", paths::USAGE)))
    }

    fn wait(&self, path: &str, kind: Lock) -> Result<Held, StoreError> {
        let locked = open_to_lock(&*self.disk, path).and_then(|file| {
            file.lock(kind)?;
            Ok(Held { _file: file })
        });
        locked.map_err(StoreError::io(format!("lock {path}")))
    }
}
