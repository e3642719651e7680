//! The chunks that cases put into stores, and the messages of their failures.

use transload::store::{ChunkHash, ManifestName, StoreError};

use crate::commands::engines::broken;
use crate::commands::random::Random;
use crate::failure::{Failure, chain};

/// Incompressible bytes with new keys.
pub(super) struct Chunks {
    pub(super) bytes: Vec<u8>,
    chunk: usize,
    random: Random,
}

impl Chunks {
    pub(super) fn new(count: usize, chunk: usize) -> Self {
        let mut random = Random::new(std::process::id().into());
        let mut bytes = Vec::with_capacity(count * chunk);
        while bytes.len() < count * chunk {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        Self { bytes, chunk, random }
    }

    pub(super) fn all(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(self.chunk)
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns a random key for each chunk. Keys are not hashes of the chunks: hashing is the consumer's work, and no
    /// store does it.
    pub(super) fn keys(&mut self) -> Vec<ChunkHash> {
        let count = self.bytes.len() / self.chunk;
        let key = |random: &mut Random| {
            let mut key = [0; 32];
            for part in key.chunks_exact_mut(8) {
                part.copy_from_slice(&random.next().to_le_bytes());
            }
            ChunkHash::from(key)
        };
        (0..count).map(|_| key(&mut self.random)).collect()
    }
}

pub(super) fn manifest(keys: &[ChunkHash]) -> Vec<u8> {
    keys.iter().flat_map(ChunkHash::as_bytes).copied().collect()
}

pub(super) fn name(text: &str) -> Result<ManifestName, Failure> {
    ManifestName::new(text).map_err(failed)
}

pub(super) fn failed(error: StoreError) -> Failure {
    Failure::no(
        format!("the store could not be measured: {}", chain(&error)),
        "does `transload store verify` find faults there?",
    )
}

pub(super) fn refused<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Failure {
    let what = what.to_string();
    move |error| Failure::no(format!("{what}: {error}"), "check the free space and your permission to write there")
}

pub(super) fn same(read: Option<&[u8]>, stored: &[u8]) -> Result<(), Failure> {
    match read == Some(stored) {
        true => Ok(()),
        false => Err(broken("a chunk was read back with other bytes than were stored")),
    }
}
