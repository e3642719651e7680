//! The key of a file.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::names::QuantType;

/// The key of a cached sequence; with `.kvc` appended it is the file's name. It is the SHA-256 of the model's
/// fingerprint, the quant byte, the hash of the context's parameters, and the token ids as `u32`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey([u8; 32]);

/// The error for a text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a key: a key has 64 hex digits, as in the name of a file")]
pub struct KeyTextError {
    text: String,
}

impl CacheKey {
    /// Computes the key of a sequence.
    pub fn new(
        fingerprint: &[u8; 32],
        quant_type: QuantType,
        ctx_params_hash: &[u8; 32],
        tokens: impl IntoIterator<Item = u32>,
    ) -> Self {
        let mut hash = Sha256::new();
        hash.update(fingerprint);
        hash.update([quant_type.byte()]);
        hash.update(ctx_params_hash);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self(hash.finalize().into())
    }

    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the name of the file in its folder.
    pub fn file_name(&self) -> String {
        format!("{self}.kvc")
    }
}

impl From<[u8; 32]> for CacheKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({self})")
    }
}

impl FromStr for CacheKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let wrong = || KeyTextError { text: text.chars().take(80).collect() };
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            for digit in pair {
                let digit = char::from(*digit).to_digit(16).ok_or_else(wrong)?;
                *byte = *byte << 4 | digit as u8;
            }
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_hex_digits() {
        let text = "60c36f2f3dc02bf1d2aeacf7ca3db6e465d2d4a31ed55fea9560ad8f7960498f";
        let key: CacheKey = text.parse().unwrap();
        assert_eq!(key.to_string(), text);
        assert_eq!(key.file_name(), format!("{text}.kvc"));
        assert_eq!(text.to_uppercase().parse(), Ok(key));
        for text in ["", "60c3", &text[1..], &text.replace('6', "g"), &"é".repeat(32)] {
            assert!(text.parse::<CacheKey>().is_err(), "{text}");
        }
    }
}
