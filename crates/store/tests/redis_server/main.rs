//! The `redis` backend against a real `redis-server`, one for each test.

mod contract;
mod crash;
mod hostile;
mod inventory;
#[path = "../revisions/mod.rs"]
mod revisions;
mod secure;

use transload_test_stores::server;

#[test]
fn newer_manifests_stay() {
    let server = server!();
    let store = server.open("/0/slot");
    revisions::newer_manifests_stay(&store);
    revisions::newer_manifests_stay_meanwhile(&store);
}
