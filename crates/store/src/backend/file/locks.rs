//! Who may publish and who may collect, among all threads of all processes.
//!
//! Publishing holds `store.lock` shared, collecting holds it exclusively. Whoever wants it holds `gate.lock`
//! until it has it, so a collection that waits keeps newcomers behind it and comes to its turn. Each lock
//! belongs to a file opened for it (`flock`), so threads exclude each other as processes do, and a process
//! that dies gives its locks back.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// How long anybody waits.
    patience: Duration,
}

/// The turns of the threads of one handle.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<bool>,
    free: Condvar,
}

/// A turn, until it is dropped.
#[must_use = "the turn ends when this is dropped"]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits until no other thread of the handle has its turn.
    pub(super) fn take(&self, patience: Duration) -> Result<Turn<'_>, StoreError> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.free.wait_timeout_while(taken, patience, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return Err(StoreError::Locked {
                lock: "the handle, which another thread publishes with,".into(),
                waited: patience,
            });
        }
        *taken = true;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// What came of doing this with a file, waiting for its lock included.
pub(super) fn failed(doing: &'static str, path: &str, patience: Duration) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |error| match error.kind() {
        io::ErrorKind::TimedOut => StoreError::Locked { lock: path, waited: patience },
        _ => StoreError::io(format!("{doing} {path}"))(error),
    }
}

impl Locks {
    pub(super) fn new(disk: Arc<dyn Disk>, patience: Duration) -> Self {
        Self { disk, patience }
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Waits until no collection runs and keeps them away.
    pub(super) fn publishing(&self) -> Result<Held, StoreError> {
        self.pass_the_gate(Lock::Shared)
    }

    /// Waits until nobody publishes or collects and keeps them away.
    pub(super) fn collecting(&self) -> Result<Held, StoreError> {
        self.pass_the_gate(Lock::Exclusive)
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
        let file = self.disk.open(paths::USAGE, How::Write);
        self.lock_usage(file)
    }

    /// Waits for the accounts of the cap, to look at them.
    pub(super) fn usage_to_read(&self) -> Result<Box<dyn File>, StoreError> {
        self.lock_usage(open_to_lock(&*self.disk, paths::USAGE))
    }

    fn lock_usage(&self, file: io::Result<Box<dyn File>>) -> Result<Box<dyn File>, StoreError> {
        let locked = file.and_then(|file| {
            file.lock(Lock::Exclusive, self.patience)?;
            Ok(file)
        });
        locked.map_err(failed("lock", paths::USAGE, self.patience))
    }

    fn pass_the_gate(&self, kind: Lock) -> Result<Held, StoreError> {
        let began = Instant::now();
        let wait = |path: &str, kind: Lock| {
            let locked = open_to_lock(&*self.disk, path).and_then(|file| {
                file.lock(kind, self.patience.saturating_sub(began.elapsed()))?;
                Ok(Held { _file: file })
            });
            locked.map_err(failed("lock", path, self.patience))
        };
        let _gate = wait(paths::GATE_LOCK, Lock::Exclusive)?;
        wait(paths::STORE_LOCK, kind)
    }
}
