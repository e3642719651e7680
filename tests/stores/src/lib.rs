//! Code that the tests of stores share: servers for one test each, backends that fail or count, and bytes to store.
#![allow(missing_docs, reason = "a test is read with what it calls")]

mod contract;
mod counted;
mod faulty;
mod flawed;
mod forward;
pub mod redis;
pub mod s3;

pub use contract::{Compares, contract};
pub use counted::Counted;
pub use faulty::{Call, Effect, Faulty, Plan, at_each_call};
pub use flawed::{Flaw, Flawed, Meanwhile, Step};

use tempfile::TempDir;

// For the macro.
#[doc(hidden)]
pub use {
    bytes::Bytes,
    transload_store::backend::{Inventory, Revision, TierStats},
    transload_store::{ChunkHash, ManifestName, Put, StoreError},
};

pub fn hash(data: &[u8]) -> ChunkHash {
    blake3::hash(data).into()
}

pub fn name(name: &str) -> ManifestName {
    ManifestName::new(name).unwrap()
}

/// Returns bytes that differ for each seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// Returns a folder in memory, if possible: nothing crashes there, and waiting for a disk would take most of the time.
pub fn quick_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Returns the least number of attempts. An environment variable may raise it.
pub fn count(variable: &str, usual: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Fails if anything was wrong after a loss of power, or if power failed at no more than `least` points.
pub fn assert_right((points, wrong): (u64, Vec<String>), least: u64) {
    println!("{points} losses of power");
    assert!(points > least, "{points}");
    assert!(wrong.is_empty(), "{} of {points}, the first: {}", wrong.len(), wrong[0]);
}
