//! Objects, on stores in memory and in folders.

mod bounds;
mod cap;
mod corpus;
mod crash;
mod damage;
mod faults;
mod model;
mod processes;

use std::sync::Arc;

use transload_store::Backend;
use transload_store::backend::MemoryStore;
use transload_store::backend::file::{FileOptions, FileStore};

use model::{live, steps};

#[test]
fn in_memory_they_are_a_map() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    live(&|| store.clone(), steps(5000), 1);
}

/// Collects in between, and closes and opens handles.
#[test]
fn in_a_folder_they_are_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    let open = || -> Arc<dyn Backend> { Arc::new(FileStore::open(&root, FileOptions::default()).unwrap()) };
    live(&open, steps(600), 2);
}
