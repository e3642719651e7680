//! One change of a manifest at a time in this process, whichever handle makes it.
//!
//! A reader that carries a manifest up must not put it over a newer one that was put meanwhile.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::name::ManifestName;

/// Names share locks.
static LOCKS: [Mutex<()>; 1024] = [const { Mutex::new(()) }; 1024];

/// How many changes of names with each lock have ended. Readers look at them without waiting for a change.
static CHANGES: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Some names, kept from being changed elsewhere while it lives.
pub(super) struct Held {
    locks: Vec<(usize, MutexGuard<'static, ()>)>,
    /// It counts as a change of all of them when it ends: whoever has read before that may have read what was replaced.
    changes: bool,
}

/// Waits until nobody changes any of these, to change them.
pub(super) fn change<'a>(names: impl Iterator<Item = &'a ManifestName>) -> Held {
    let mut held = hold(names);
    held.changes = true;
    held
}

/// Waits until nobody changes any of these.
pub(super) fn hold<'a>(names: impl Iterator<Item = &'a ManifestName>) -> Held {
    let lock = |place: usize| Some(LOCKS[place].lock().unwrap_or_else(PoisonError::into_inner));
    take(names, lock)
}

/// Takes those that nobody changes.
pub(super) fn try_hold<'a>(names: impl Iterator<Item = &'a ManifestName>) -> Held {
    take(names, |place| match LOCKS[place].try_lock() {
        Ok(lock) => Some(lock),
        Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    })
}

/// How many changes of a name have ended, or of one that shares its lock.
pub(super) fn changes(name: &ManifestName) -> u64 {
    CHANGES[place(name)].load(SeqCst)
}

impl Held {
    /// Whether this name is held, and was not changed since there were so many [`changes`].
    pub(super) fn is_unchanged(&self, name: &ManifestName, since: u64) -> bool {
        let place = place(name);
        self.locks.iter().any(|(at, _)| *at == place) && CHANGES[place].load(SeqCst) == since
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (place, _) in self.locks.iter().filter(|_| self.changes) {
            CHANGES[*place].fetch_add(1, SeqCst);
        }
    }
}

fn take<'a>(
    names: impl Iterator<Item = &'a ManifestName>,
    lock: impl Fn(usize) -> Option<MutexGuard<'static, ()>>,
) -> Held {
    let mut places: Vec<usize> = names.map(place).collect();
    // In one order, so that no two wait for each other.
    places.sort_unstable();
    places.dedup();
    let locks = places.into_iter();
    Held {
        locks: locks
            .filter_map(|place| Some((place, lock(place)?)))
            .collect(),
        changes: false,
    }
}

fn place(name: &ManifestName) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
    hash as usize % LOCKS.len()
}
