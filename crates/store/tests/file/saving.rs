//! The data that the processes of these tests save, and how it is checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use transload_store::backend::Backend;
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::{ChunkHash, ManifestName, StoreError};

pub(crate) fn name(text: &str) -> ManifestName {
    ManifestName::new(text).unwrap()
}

pub(crate) fn chunk(n: u64) -> (ChunkHash, Vec<u8>) {
    let mut data = vec![0; 1000 + (n as usize * 977) % 9000];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut data);
    (blake3::hash(&data).into(), data)
}

/// Returns a manifest with a unique version. It contains the numbers of its chunks, for the test, and their hashes, so
/// that the store knows them in whatever order threads publish.
pub(crate) fn manifest(version: u64, chunks: &[u64]) -> Vec<u8> {
    let numbers = [&[version, chunks.len() as u64], chunks].concat();
    let mut manifest: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    for &n in chunks {
        manifest.extend(chunk(n).0.as_bytes());
    }
    manifest
}

/// Returns the first chunk of a manifest that is missing or has other bytes.
pub(crate) fn wrong_chunk(store: &FileStore, manifest: &[u8]) -> Result<Option<ChunkHash>, StoreError> {
    let mut numbers = manifest.chunks_exact(8).map(|number| number.try_into().unwrap());
    let count = numbers.nth(1).map_or(0, u64::from_le_bytes);
    for number in numbers.take(count as usize) {
        let (hash, data) = chunk(u64::from_le_bytes(number));
        if store.get_chunk(&hash)?.as_deref() != Some(&data[..]) {
            return Ok(Some(hash));
        }
    }
    Ok(None)
}

pub(crate) fn open(root: &Path) -> FileStore {
    FileStore::open(root, FileOptions::default()).unwrap()
}

/// Returns the path of the empty file that a process leaves if it dies while this manifest is about to change.
pub(crate) fn intent(root: &Path, which: &str) -> PathBuf {
    let digits = blake3::hash(which.as_bytes()).to_hex();
    root.join(format!("tmp/{}.{digits}.intent", &digits[..32]))
}

pub(crate) fn verify(store: &FileStore) {
    let inventory = store.inventory().unwrap();
    let mut fault = |fault| panic!("{fault:?}");
    inventory.verify(&mut |_| (), &mut fault).unwrap();
}

pub(crate) fn count(variable: &str, usual: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

pub(crate) const ROOT: &str = "TRANSLOAD_TEST_ROOT";
pub(crate) const ROLE: &str = "TRANSLOAD_TEST_ROLE";

/// Makes a command run this program again, as the helper test `test`. With one test thread, it runs in the main thread.
pub(crate) fn again(command: &mut Command, test: &str, root: &Path, role: &str) {
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(ROOT, root).env(ROLE, role);
}

/// Returns root and role of a helper, or `None` if the helper test was started by hand.
pub(crate) fn called() -> Option<(String, String)> {
    Some((std::env::var(ROOT).ok()?, std::env::var(ROLE).ok()?))
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
