//! Checksums that bind a value to its key: a chunk to its hash, a manifest to its name.
//!
//! The checksum is the CRC32C (iSCSI) of the kind (`c` for a chunk, `m` for a manifest), the length of the key, the
//! key, the length of the value, and the value. Lengths have 8 bytes, little-endian. So a value found under another key
//! counts as damaged, like one with a changed bit.

use crc_fast::{CrcAlgorithm, Digest};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Seal<'a> {
    Chunk(&'a [u8]),
    /// A manifest, by its name in the store (with the handle's prefix in front).
    Manifest(&'a [u8]),
}

impl Seal<'_> {
    pub(crate) fn sum(self, data: &[u8]) -> u32 {
        let (kind, key) = match self {
            Self::Chunk(key) => (b'c', key),
            Self::Manifest(key) => (b'm', key),
        };
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&[kind]);
        digest.update(&(key.len() as u64).to_le_bytes());
        digest.update(key);
        digest.update(&(data.len() as u64).to_le_bytes());
        digest.update(data);
        // The CRC32 is in the low half of the result.
        digest.finalize() as u32
    }
}

impl std::fmt::Display for Seal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Chunk(hash) => {
                f.write_str("chunk ")?;
                hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Manifest(name) => {
                write!(f, "manifest {:?}", String::from_utf8_lossy(name))
            }
        }
    }
}
