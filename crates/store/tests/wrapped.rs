//! A backend with something around it is a backend.

mod revisions;

use std::sync::Arc;
use std::time::Duration;

use transload_store::Backend;
use transload_store::backend::MemoryStore;
use transload_store::backend::wrap::{Checksummed, Faulty, Metered, Plan, Throttled};
use transload_store::conformance::{Options, check};

fn conforms<B: Backend + 'static>(wrap: impl Fn(MemoryStore) -> B + Sync) {
    let store = MemoryStore::new();
    let report = check(&|| Ok(Arc::new(wrap(store.clone()))), &Options::quick());
    assert!(report.is_clean(), "{report}");
    revisions::newer_manifests_stay(&wrap(MemoryStore::new()));
    revisions::newer_manifests_stay_meanwhile(&wrap(MemoryStore::new()));
}

#[test]
fn checksummed() {
    conforms(Checksummed::new);
}

#[test]
fn metered() {
    conforms(Metered::new);
}

#[test]
fn faulty_without_faults() {
    conforms(|store| Faulty::new(store, Plan::new()));
}

#[test]
fn throttled() {
    conforms(|store| Throttled::new(store).with_latency(Duration::from_micros(1)));
}

#[test]
fn one_around_the_other() {
    conforms(|store| Metered::new(Checksummed::new(Throttled::new(store))));
}
