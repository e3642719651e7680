//! The file store among real processes on a real file system.

mod cap;
mod corpus;
mod full;
mod heal;
mod kills;
mod leftovers;
mod lying;
mod modes;
mod names;
mod processes;
mod read_only;
mod saving;
mod waiting;

use std::sync::Arc;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_test_stores::{Compares, contract, quick_folder};

#[test]
fn keeps_the_contract() {
    let folder = quick_folder();
    contract("file", Compares::InOneStep, &|| {
        Arc::new(FileStore::open(folder.path().join("kv"), FileOptions::default()).unwrap())
    });
}
