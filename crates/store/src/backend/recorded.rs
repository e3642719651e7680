//! The record in front of a manifest's bytes: the time of its put and the chunks it was saved with.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | time of the put in nanoseconds since 1970, little-endian; distinguishes two puts of the same bytes |
//! | 8..12 | length of the references in bytes, little-endian |
//! | then | the references: each its length in one byte, then the hash; ascending |
//!
//! The references are the chunks that [`Guard`](super::guard::Guard) says the manifest needs. So a collection keeps
//! chunks that a manifest does not name in its bytes, and verifying finds them if they are missing.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The bytes in front of the references.
pub(super) const FIXED: usize = 12;

#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    references: Bytes,
    pub(super) data: Bytes,
}

/// Encodes a manifest for storing, after the bytes `front`.
///
/// # Errors
/// [`StoreError::TooLarge`] if the references take more than 4 GiB.
pub(super) fn encode(front: &[u8], references: &[ChunkHash], data: &[u8]) -> Result<Vec<u8>, StoreError> {
    let len: usize = references.iter().map(|hash| 1 + hash.as_bytes().len()).sum();
    let field = u32::try_from(len).map_err(|_| StoreError::TooLarge { bytes: len as u64, most: u32::MAX.into() })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // A `u64` suffices until the year 2554.
    let now = now.map_or(0, |now| now.as_nanos() as u64);
    let mut stored = Vec::with_capacity(front.len() + FIXED + len + data.len());
    stored.extend_from_slice(front);
    stored.extend(now.to_le_bytes());
    stored.extend(field.to_le_bytes());
    for hash in references {
        // A hash has at most 64 bytes.
        stored.push(hash.as_bytes().len() as u8);
        stored.extend_from_slice(hash.as_bytes());
    }
    stored.extend_from_slice(data);
    Ok(stored)
}

/// Reads the length of the references from the beginning of a stored manifest.
pub(super) fn references_len(stored: &[u8]) -> Option<u64> {
    let field = stored.get(8..FIXED)?.first_chunk()?;
    Some(u32::from_le_bytes(*field).into())
}

impl Recorded {
    /// Parses what [`encode`] made, without `front`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the bytes are not a recorded manifest. `what` names it.
    pub(super) fn decode(stored: Bytes, what: impl Fn() -> String) -> Result<Self, StoreError> {
        let end = references_len(&stored)
            .and_then(|len| usize::try_from(len).ok()?.checked_add(FIXED))
            .filter(|&end| end <= stored.len());
        let Some(end) = end else {
            return Err(StoreError::Damaged {
                what: what(),
                how: "the chunks that it was saved with cannot be read".into(),
            });
        };
        Ok(Self { references: stored.slice(FIXED..end), data: stored.slice(end..) })
    }

    /// Returns the chunks that the manifest was saved with. Its checksum has been checked, so every hash can be read.
    pub(super) fn references(&self) -> impl Iterator<Item = ChunkHash> {
        let mut rest = &self.references[..];
        std::iter::from_fn(move || {
            let (&len, after) = rest.split_first()?;
            let (hash, after) = after.split_at_checked(len.into())?;
            rest = after;
            ChunkHash::new(hash).ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_back(
            hashes in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=64), 0..5),
            data in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let hashes: Vec<_> = hashes.iter().map(|hash| ChunkHash::new(hash).unwrap()).collect();
            let stored = encode(b"name", &hashes, &data).unwrap();
            prop_assert!(stored.starts_with(b"name"));
            let stored = Bytes::from(stored).slice(4..);
            let overhead = FIXED as u64 + references_len(&stored[..FIXED]).unwrap();
            prop_assert_eq!(stored.len() as u64 - overhead, data.len() as u64);
            let back = Recorded::decode(stored, String::new).unwrap();
            prop_assert_eq!(back.references().collect::<Vec<_>>(), hashes);
            prop_assert_eq!(back.data, data);
        }

        #[test]
        fn any_bytes_are_read(stored in prop::collection::vec(any::<u8>(), 0..40), len in 0..40_u32) {
            let mut stored = stored;
            if let Some(field) = stored.get_mut(8..FIXED) {
                field.copy_from_slice(&len.to_le_bytes());
            }
            if let Ok(recorded) = Recorded::decode(stored.into(), String::new) {
                recorded.references().count();
            }
        }
    }
}
