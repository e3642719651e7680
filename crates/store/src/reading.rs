//! Reading what a store may have lost or damaged.

use bytes::Bytes;

use crate::error::StoreError;

/// Reads values in one call of the store. What the store finds damaged is `None`, as what it does not have.
///
/// # Errors
/// If the store fails in any other way.
pub fn readable<K>(
    keys: &[K],
    read: impl Fn(&[K]) -> Result<Vec<Option<Bytes>>, StoreError>,
) -> Result<Vec<Option<Bytes>>, StoreError> {
    match read(keys) {
        // One of them is; find out which.
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
