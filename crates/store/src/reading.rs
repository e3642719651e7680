//! Reading of values that may be lost or damaged.

use bytes::Bytes;

use crate::error::StoreError;

/// Reads values in one call of the store. Damaged values yield `None`, like missing ones.
///
/// # Errors
/// Returns an error if the store fails in any other way.
pub fn readable<K>(
    keys: &[K],
    read: impl Fn(&[K]) -> Result<Vec<Option<Bytes>>, StoreError>,
) -> Result<Vec<Option<Bytes>>, StoreError> {
    match read(keys) {
        // The batch does not say which value is damaged, so read one at a time.
        Err(StoreError::Damaged { .. }) => keys
            .chunks(1)
            .map(|key| match read(key) {
                Err(StoreError::Damaged { .. }) => Ok(None),
                other => Ok(other?.pop().flatten()),
            })
            .collect(),
        other => other,
    }
}
