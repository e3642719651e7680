//! The requirements of `kv_store_v1`, checked for some compositions of two and three tiers.

use std::sync::Arc;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{MemoryStore, Tier, TierStore, Write};
use transload_test_stores::{Compares, contract, quick_folder};

#[derive(Clone)]
enum Place {
    Memory(MemoryStore),
    Full(MemoryStore),
    File(std::path::PathBuf),
}

impl Place {
    fn open(&self) -> Tier {
        match self {
            Self::Memory(store) | Self::Full(store) => Tier::memory("memory", store.clone()),
            Self::File(path) => {
                let store = FileStore::open(path, FileOptions::default()).unwrap();
                Tier::new("file", Arc::new(store))
            }
        }
    }
}

fn conforms(kinds: &str, write: Write) {
    let folder = quick_folder();
    let places: Vec<Place> = kinds
        .char_indices()
        .map(|(at, kind)| match kind {
            'm' => Place::Memory(MemoryStore::new()),
            // Takes little: most copies are skipped.
            's' => Place::Full(MemoryStore::with_cap(9000)),
            _ => Place::File(folder.path().join(at.to_string())),
        })
        .collect();
    contract(&format!("{kinds} {write:?}"), Compares::InOneStep, &|| {
        let tiers = places.iter().map(Place::open).collect();
        Arc::new(TierStore::new(tiers, write).unwrap())
    });
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
