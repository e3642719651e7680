//! What `kv_store_v1` asks of a backend, of some compositions of two and three.

use std::sync::Arc;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::memory::MemoryStore;
use transload_store::backend::tier::Write;
use transload_store::backend::{Tier, TierStore};
use transload_store::conformance::{Options, check};
use transload_store::{Backend, StoreError};

use crate::revisions;

/// A store that can be opened again and again.
#[derive(Clone)]
enum Place {
    Memory(MemoryStore),
    Full(MemoryStore),
    File(std::path::PathBuf),
}

impl Place {
    fn open(&self) -> Result<Tier, StoreError> {
        Ok(match self {
            Self::Memory(store) | Self::Full(store) => Tier::memory("memory", store.clone()),
            Self::File(path) => {
                let store = FileStore::open(path, FileOptions::new())?;
                Tier::new("file", Arc::new(store))
            }
        })
    }
}

fn conforms(kinds: &str, write: Write) {
    // In memory where that can be: nothing crashes here, and waiting for a disk takes most of the time.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.unwrap();
    let places: Vec<Place> = kinds
        .char_indices()
        .map(|(at, kind)| match kind {
            'm' => Place::Memory(MemoryStore::new()),
            // Takes little: most copies are skipped.
            's' => Place::Full(MemoryStore::with_cap(9000)),
            _ => Place::File(folder.path().join(at.to_string())),
        })
        .collect();
    let open = || -> Result<Arc<dyn Backend>, StoreError> {
        let tiers: Result<Vec<_>, _> = places.iter().map(Place::open).collect();
        Ok(Arc::new(TierStore::new(tiers?, write)?))
    };
    let report = check(&open, &Options::quick());
    assert!(report.is_clean(), "{kinds} {write:?}: {report}");
    let store = open().unwrap();
    revisions::newer_manifests_stay(&*store);
    revisions::newer_manifests_stay_meanwhile(&*store);
}

fn all(kinds: &[&str]) {
    for kinds in kinds {
        conforms(kinds, Write::Through);
        conforms(kinds, Write::Back);
    }
}

#[test]
fn two_tiers() {
    all(&["mf", "ff"]);
}

#[test]
fn three_tiers_with_one_memory() {
    all(&["mff", "fmf"]);
}

#[test]
fn three_tiers_of_which_one_is_full() {
    all(&["sff"]);
}
