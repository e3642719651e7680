//! The header in front of every value that leaves the machine: what it is, how long it is, and a checksum.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `TLv1` |
//! | 4..8 | CRC32C (iSCSI), little-endian, of everything below and then of the value |
//! | 8..16 | length of the value in bytes, little-endian |
//!
//! The checksum begins with the kind (`c` for a chunk, `m` for a manifest) and the key the value belongs to,
//! neither of which is stored: a value found under another key is as damaged as one with a changed bit.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

use crate::error::StoreError;

/// Length of the header in bytes.
pub(crate) const HEADER: usize = 16;

const MAGIC: [u8; 4] = *b"TLv1";

/// What a value is and under which key it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seal<'a> {
    /// A chunk, and the bytes of its hash.
    Chunk(&'a [u8]),
    /// A manifest, and its name in the store (with the handle's prefix in front).
    Manifest(&'a [u8]),
}

impl Seal<'_> {
    /// The header to be stored in front of `data`.
    pub(crate) fn header(self, data: &[u8]) -> [u8; HEADER] {
        let len = (data.len() as u64).to_le_bytes();
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&self.checksum(len, data).to_le_bytes());
        header[8..].copy_from_slice(&len);
        header
    }

    /// The checksum that stands in the header, for who keeps it elsewhere.
    pub(crate) fn sum(self, data: &[u8]) -> u32 {
        self.checksum((data.len() as u64).to_le_bytes(), data)
    }

    /// The value of what was stored.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it is not what [`header`](Self::header) was made for.
    pub(crate) fn open(self, stored: Bytes) -> Result<Bytes, StoreError> {
        let damaged = |how: String| StoreError::Damaged { what: self.to_string(), how };
        let Some((header, data)) = stored.split_first_chunk::<{ HEADER }>() else {
            return Err(damaged(format!(
                "{} bytes are shorter than the header of a value ({} bytes)",
                stored.len(),
                HEADER
            )));
        };
        let [m0, m1, m2, m3, c0, c1, c2, c3, len @ ..] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(damaged("it does not begin with `TLv1`".into()));
        }
        if u64::from_le_bytes(len) != data.len() as u64 {
            return Err(damaged(format!(
                "its header says {} bytes, and there are {}",
                u64::from_le_bytes(len),
                data.len()
            )));
        }
        let expected = u32::from_le_bytes([c0, c1, c2, c3]);
        let found = self.checksum(len, data);
        if expected != found {
            return Err(damaged(format!("its checksum should be {expected:08x} and is {found:08x}")));
        }
        Ok(stored.slice(HEADER..))
    }

    fn checksum(self, len: [u8; 8], data: &[u8]) -> u32 {
        let (kind, key) = match self {
            Self::Chunk(key) => (b'c', key),
            Self::Manifest(key) => (b'm', key),
        };
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&[kind]);
        digest.update(&(key.len() as u64).to_le_bytes());
        digest.update(key);
        digest.update(&len);
        digest.update(data);
        // A CRC32 comes in the low half.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(seal: Seal<'_>, data: &[u8]) -> Vec<u8> {
        [&seal.header(data)[..], data].concat()
    }

    #[test]
    fn opens_what_it_sealed_and_no_change_of_a_bit() {
        for data in [&b""[..], b"x", &[7; 100]] {
            let seal = Seal::Chunk(&[1, 2, 3]);
            let whole = stored(seal, data);
            assert_eq!(seal.open(whole.clone().into()).unwrap(), data);
            for bit in 0..whole.len() * 8 {
                let mut changed = whole.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(seal.open(changed.into()).is_err(), "bit {bit}");
            }
            for len in 0..whole.len() {
                assert!(seal.open(whole[..len].to_vec().into()).is_err());
            }
            assert!(seal.open([&whole[..], &[0]].concat().into()).is_err());
        }
    }

    #[test]
    fn a_value_belongs_to_its_key() {
        let whole = stored(Seal::Chunk(b"ab"), b"data");
        for other in [Seal::Chunk(b"ac"), Seal::Chunk(b"a"), Seal::Manifest(b"ab")] {
            let error = other.open(whole.clone().into()).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        }
    }
}
