//! The `s3` backend against two S3 servers of others: s3s-fs in this process, and moto where it is installed.

mod contract;
mod crash;
mod inventory;
#[cfg(feature = "objects")]
mod objects;
#[path = "../revisions/mod.rs"]
mod revisions;
mod server;

#[test]
fn newer_manifests_stay() {
    for server in std::iter::once(server::Server::s3s()).chain(server::Server::moto()) {
        revisions::newer_manifests_stay(&server.open("/kv/slot"));
    }
}
