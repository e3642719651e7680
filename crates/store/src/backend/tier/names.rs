//! Names of manifests in tiers.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::name::ManifestName;

/// What the names of copies begin with.
const COPY: &str = "transload.copy/";

/// Makes the name under which a tier keeps a copy of a manifest: under its own name it would be a pending one, also to
/// processes that make copies later. Returns `None` if it would be too long: then the tier has no copy, and may collect its
/// chunks.
pub(super) fn copy_name(name: &ManifestName) -> Option<ManifestName> {
    ManifestName::new(format!("{COPY}{name}")).ok()
}

/// Whether a manifest is a copy by its name.
pub(super) fn is_copy(name: &ManifestName) -> bool {
    name.as_str().starts_with(COPY)
}

/// Refuses the names of copies.
pub(super) fn is_free(name: &ManifestName) -> Result<(), StoreError> {
    match is_copy(name) {
        false => Ok(()),
        true => Err(StoreError::Name {
            name: name.as_str().chars().take(64).collect(),
            why: "names that begin with transload.copy/ are those of copies in a tier",
        }),
    }
}

/// Names share locks.
static LOCKS: [Mutex<()>; 1024] = [const { Mutex::new(()) }; 1024];

/// Waits until no handle of this process removes or copies this manifest, and keeps the others from it: a copy of what was
/// removed meanwhile would bring it back.
pub(super) fn hold(name: &ManifestName) -> MutexGuard<'static, ()> {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
    let lock = &LOCKS[hash as usize % LOCKS.len()];
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
