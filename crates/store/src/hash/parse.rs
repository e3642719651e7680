//! Hashes from bytes and texts, which may not be any.

use std::str::FromStr;

use super::ChunkHash;
use crate::error::StoreError;

impl ChunkHash {
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
