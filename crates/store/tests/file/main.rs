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
#[path = "../revisions/mod.rs"]
mod revisions;
mod saving;
mod waiting;

#[test]
fn newer_manifests_stay() {
    let folder = tempfile::tempdir().unwrap();
    let options = transload_store::backend::file::FileOptions::new();
    let store = transload_store::backend::file::FileStore::open(folder.path().join("kv"), options);
    let store = store.unwrap();
    revisions::newer_manifests_stay(&store);
    revisions::newer_manifests_stay_meanwhile(&store);
}
