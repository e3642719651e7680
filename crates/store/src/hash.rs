//! The key of a store chunk: a hash of the consumer's choice.

use std::fmt;
use std::str::FromStr;

use crate::error::StoreError;

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

    /// Takes the bytes of a hash.
    ///
    /// # Errors
    /// [`StoreError::HashLength`] unless there are 1 to 64 bytes.
    pub fn new(hash: &[u8]) -> Result<Self, StoreError> {
        if hash.is_empty() || hash.len() > Self::MAX {
            return Err(StoreError::HashLength { len: hash.len() });
        }
        let mut bytes = [0; Self::MAX];
        bytes[..hash.len()].copy_from_slice(hash);
        Ok(Self { bytes, len: hash.len() as u8 })
    }

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

impl FromStr for ChunkHash {
    type Err = StoreError;

    fn from_str(hex: &str) -> Result<Self, StoreError> {
        let wrong = || StoreError::HashText { text: hex.into() };
        if !hex.len().is_multiple_of(2) {
            return Err(wrong());
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
        let bytes: Option<Vec<u8>> =
            hex.as_bytes().chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect();
        Self::new(&bytes.ok_or_else(wrong)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_it_was_given() {
        for len in [1, 8, 16, 32, 63, 64] {
            let bytes: Vec<u8> = (0..len as u8).collect();
            let hash = ChunkHash::new(&bytes).unwrap();
            assert_eq!(hash.as_bytes(), bytes);
            assert_eq!(hash.to_string().parse::<ChunkHash>().unwrap(), hash);
        }
    }

    #[test]
    fn a_hash_is_not_its_own_prefix() {
        let short = ChunkHash::new(&[7]).unwrap();
        let long = ChunkHash::new(&[7, 0]).unwrap();
        assert_ne!(short, long);
        assert!(short < long, "as slices are ordered");
    }

    #[test]
    fn refuses_other_lengths_and_other_letters() {
        for len in [0, 65, 1000] {
            let error = ChunkHash::new(&vec![0; len]).unwrap_err();
            assert!(matches!(error, StoreError::HashLength { len: l } if l == len));
        }
        for text in ["", "0", "0g", "é1", "0x12"] {
            assert!(text.parse::<ChunkHash>().is_err(), "{text}");
        }
    }
}
