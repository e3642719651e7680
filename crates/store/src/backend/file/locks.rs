//! Locks between publishing and collecting, for all threads of all processes.
//!
//! Publishers hold `store.lock` shared, a collection holds it exclusively. While waiting for it, both hold `gate.lock`,
//! so newcomers queue behind a waiting collection and do not starve it. Each lock belongs to a file opened for it
//! (`flock`). So threads exclude each other as processes do, and the system releases the locks of a process that dies.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::disk::{Disk, File, How, Lock, open_to_lock};
use super::paths;
use crate::error::StoreError;

#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub(super) struct Held {
    _file: Box<dyn File>,
}

#[derive(Clone, Debug)]
pub(super) struct Locks {
    disk: Arc<dyn Disk>,
    timeout: Duration,
}

/// A mutex with a timeout for the threads of one handle, so that one of them publishes at a time.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<bool>,
    free: Condvar,
}

#[must_use = "the turn ends when this is dropped"]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits until no other thread of the handle publishes.
    pub(super) fn take(&self, timeout: Duration) -> Result<Turn<'_>, StoreError> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.free.wait_timeout_while(taken, timeout, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return Err(StoreError::Locked {
                lock: "the handle, which another thread publishes with,".into(),
                waited: timeout,
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

pub(super) fn failed(doing: &'static str, path: &str, timeout: Duration) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |error| match error.kind() {
        io::ErrorKind::TimedOut => StoreError::Locked { lock: path, waited: timeout },
        _ => StoreError::io(format!("{doing} {path}"))(error),
    }
}

impl Locks {
    pub(super) fn new(disk: Arc<dyn Disk>, timeout: Duration) -> Self {
        Self { disk, timeout }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits until no collection runs, and prevents collections from starting.
    pub(super) fn publishing(&self) -> Result<Held, StoreError> {
        self.pass_the_gate(Lock::Shared)
    }

    /// Waits until no process publishes or collects, and prevents both.
    pub(super) fn collecting(&self) -> Result<Held, StoreError> {
        self.pass_the_gate(Lock::Exclusive)
    }

    /// Takes the lock of [`collecting`](Self::collecting) if it is free.
    pub(super) fn try_collecting(&self) -> Result<Option<Held>, StoreError> {
        let taken = (|| {
            let gate = open_to_lock(&*self.disk, paths::GATE_LOCK)?;
            let store = open_to_lock(&*self.disk, paths::STORE_LOCK)?;
            let both = gate.try_lock()? && store.try_lock()?;
            Ok(both.then_some(Held { _file: store }))
        })();
        taken.map_err(StoreError::io("lock the store"))
    }

    pub(super) fn usage(&self) -> Result<Box<dyn File>, StoreError> {
        let file = self.disk.open(paths::USAGE, How::Write);
        self.lock_usage(file)
    }

    pub(super) fn usage_to_read(&self) -> Result<Box<dyn File>, StoreError> {
        self.lock_usage(open_to_lock(&*self.disk, paths::USAGE))
    }

    fn lock_usage(&self, file: io::Result<Box<dyn File>>) -> Result<Box<dyn File>, StoreError> {
        let locked = file.and_then(|file| {
            file.lock(Lock::Exclusive, self.timeout)?;
            Ok(file)
        });
        locked.map_err(failed("lock", paths::USAGE, self.timeout))
    }

    fn pass_the_gate(&self, kind: Lock) -> Result<Held, StoreError> {
        let began = Instant::now();
        let wait = |path: &str, kind: Lock| {
            let locked = open_to_lock(&*self.disk, path).and_then(|file| {
                file.lock(kind, self.timeout.saturating_sub(began.elapsed()))?;
                Ok(Held { _file: file })
            });
            locked.map_err(failed("lock", path, self.timeout))
        };
        let _gate = wait(paths::GATE_LOCK, Lock::Exclusive)?;
        wait(paths::STORE_LOCK, kind)
    }
}
