//! The header in front of every value on a server: a magic number, a checksum and the length.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `TLv1` |
//! | 4..8 | [checksum](Seal::sum), little-endian |
//! | 8..16 | length of the value in bytes, little-endian |

use bytes::Bytes;

use crate::backend::sealed::Seal;
use crate::error::StoreError;

pub(crate) const HEADER: usize = 16;

const MAGIC: [u8; 4] = *b"TLv1";

impl Seal<'_> {
    pub(crate) fn header(self, data: &[u8]) -> [u8; HEADER] {
        let len = (data.len() as u64).to_le_bytes();
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&self.sum(data).to_le_bytes());
        header[8..].copy_from_slice(&len);
        header
    }

    /// # Errors
    /// [`StoreError::Damaged`] if the header does not match the value.
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
        let found = self.sum(data);
        if expected != found {
            return Err(damaged(format!("its checksum should be {expected:08x} and is {found:08x}")));
        }
        Ok(stored.slice(HEADER..))
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
