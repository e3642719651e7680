//! Names of copies of manifests, and locks on manifests.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::name::ManifestName;

const COPY: &str = "transload.copy/";

/// Returns the name under which a tier keeps a copy of a manifest. Under its own name it would count as pending, also
/// for other processes that write back. Returns `None` if the name would be too long: then the tier has no copy and may
/// collect its chunks.
pub(super) fn copy_name(name: &ManifestName) -> Option<ManifestName> {
    ManifestName::new(format!("{COPY}{name}")).ok()
}

pub(super) fn is_copy(name: &ManifestName) -> bool {
    name.as_str().starts_with(COPY)
}

pub(super) fn is_free(name: &ManifestName) -> Result<(), StoreError> {
    match is_copy(name) {
        false => Ok(()),
        true => Err(StoreError::Name {
            name: name.as_str().chars().take(64).collect(),
            why: "names that begin with transload.copy/ are those of copies in a tier",
        }),
    }
}

/// Locks that names share, chosen by the name's hash.
static LOCKS: [Mutex<()>; 1024] = [const { Mutex::new(()) }; 1024];

/// Locks a manifest against removal and copying by other handles of this process. A copy of a manifest that is removed
/// meanwhile would bring it back.
pub(super) fn hold(name: &ManifestName) -> MutexGuard<'static, ()> {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
    let lock = &LOCKS[hash as usize % LOCKS.len()];
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
