//! The `redis` backend against a real `redis-server`, one for each test.

#[cfg(feature = "archive")]
mod archive;
mod contract;
mod crash;
mod hostile;
mod inventory;
#[path = "../revisions/mod.rs"]
mod revisions;
mod secure;
mod server;

#[test]
fn newer_manifests_stay() {
    let server = server!();
    revisions::newer_manifests_stay(&server.open("/0/slot"));
}
