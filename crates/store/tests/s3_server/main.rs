//! The `s3` backend against two S3 servers of others: s3s-fs in this process, and moto where it is installed.

mod contract;
mod crash;
mod inventory;
#[path = "../revisions/mod.rs"]
mod revisions;

use transload_test_stores::s3::Server;

#[test]
fn newer_manifests_stay() {
    for server in std::iter::once(Server::s3s()).chain(Server::moto()) {
        revisions::newer_manifests_stay(&server.open("/kv/slot"));
    }
}
