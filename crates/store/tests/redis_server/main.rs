//! The `redis` backend against a real `redis-server`, one for each test.

#[cfg(feature = "archive")]
mod archive;
mod contract;
mod crash;
mod hostile;
mod inventory;
#[cfg(feature = "objects")]
mod objects;
#[path = "../revisions/mod.rs"]
mod revisions;
mod secure;
mod server;

#[test]
fn newer_manifests_stay() {
    let server = server!();
    let store = server.open("/0/slot");
    revisions::newer_manifests_stay(&store);
    revisions::newer_manifests_stay_meanwhile(&store);
}
