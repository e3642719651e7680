//! One change of a manifest at a time in this process, whichever handle makes it.
//!
//! A reader that carries a manifest up must not put it over a newer one that was put meanwhile.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::name::ManifestName;

/// Names share locks; each lock counts the changes of its names.
static LOCKS: [Mutex<u64>; 1024] = [const { Mutex::new(0) }; 1024];

/// The changes of some names, kept from happening elsewhere while it lives.
pub(super) struct Held(Vec<(usize, MutexGuard<'static, u64>)>);

/// Waits until nobody changes any of these.
pub(super) fn hold<'a>(names: impl Iterator<Item = &'a ManifestName>) -> Held {
    let mut places: Vec<usize> = names.map(place).collect();
    // In one order, so that no two wait for each other.
    places.sort_unstable();
    places.dedup();
    Held(
        places
            .into_iter()
            .map(|place| (place, lock(place)))
            .collect(),
    )
}

/// How often a name has been changed, or one that shares its lock.
pub(super) fn changes(name: &ManifestName) -> u64 {
    *lock(place(name))
}

impl Held {
    /// All of them are being changed.
    pub(super) fn change(mut self) -> Self {
        self.0.iter_mut().for_each(|(_, changes)| **changes += 1);
        self
    }

    /// As [`changes`], of a name that is held.
    pub(super) fn changes(&self, name: &ManifestName) -> Option<u64> {
        let mut held = self.0.iter();
        Some(*held.find(|(at, _)| *at == place(name))?.1)
    }
}

fn place(name: &ManifestName) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
    hash as usize % LOCKS.len()
}

fn lock(place: usize) -> MutexGuard<'static, u64> {
    // A count is whole.
    LOCKS[place].lock().unwrap_or_else(PoisonError::into_inner)
}
