//! The key of a store chunk: a hash of the consumer's choice.

use std::fmt;

mod parse;

/// The key of a store chunk: 1 to 64 bytes that its consumer computed, 8 for xxh3-64 (llama.cpp), 32 for
/// SHA-256 (oMLX) or BLAKE3 (`transload-archive`).
///
/// A backend never computes hashes and gives no meaning to the bytes. As text, a hash is lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkHash {
    // The bytes behind the length are zero, so that the derived comparisons are those of the slices.
    bytes: [u8; Self::MAX],
    len: u8,
}

impl ChunkHash {
    /// The longest key, in bytes. SHA-512 fits.
    pub const MAX: usize = 64;

    /// Returns the bytes, unchanged.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl From<[u8; 32]> for ChunkHash {
    fn from(hash: [u8; 32]) -> Self {
        let mut bytes = [0; Self::MAX];
        bytes[..32].copy_from_slice(&hash);
        Self { bytes, len: 32 }
    }
}

impl From<blake3::Hash> for ChunkHash {
    fn from(hash: blake3::Hash) -> Self {
        Self::from(*hash.as_bytes())
    }
}

impl fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkHash({self})")
    }
}
