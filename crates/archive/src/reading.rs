//! Reading what a store may have lost or damaged.

use bytes::Bytes;
use transload_store::{Backend, ChunkHash, ManifestName, StoreError};

/// Takes what was read of a chunk if it is whole; otherwise asks the store again, below any copy that may be wrong.
///
/// # Errors
/// [`StoreError::Damaged`] if its bytes are wrong there, too, or whatever the store fails with.
pub(crate) fn whole_chunk(
    store: &dyn Backend,
    hash: &ChunkHash,
    read: Result<Option<Bytes>, StoreError>,
    is_whole: impl Fn(&[u8]) -> bool,
) -> Result<Option<Bytes>, StoreError> {
    let checked = |read: Result<Option<Bytes>, StoreError>| match read {
        Ok(Some(data)) if !is_whole(&data) => Err(StoreError::Damaged {
            what: format!("chunk {hash}"),
            how: "it has other bytes than its hash is of".to_owned(),
        }),
        read => read,
    };
    let first = checked(read);
    if !matches!(first, Ok(None) | Err(StoreError::Damaged { .. })) {
        return first;
    }
    match checked(store.reread_chunk(hash)) {
        Ok(None) | Err(StoreError::Damaged { .. }) => first,
        again => again,
    }
}

/// Removes a manifest that names what is gone or damaged, unless it has been put or healed since: `is_useless` says of the
/// bytes that are there now whether they still are of no use.
///
/// Where the store cannot tell two puts apart, one that is put in the same instant may go with it: the next save writes it
/// again, and nothing wrong is read. If it stayed, every read through it would fail, and no save would mend it, since it
/// seems to be there.
pub(crate) fn forget(store: &dyn Backend, name: &ManifestName, is_useless: impl Fn(&[u8]) -> bool) {
    // First which put it is, then whether it still is of no use: one that is put from here on is another one, and what was
    // saved again before is seen.
    let removed = match store.manifest_revision(name) {
        Ok(Some((there, revision))) if is_useless(&there) => store.delete_revision(name, &revision).map(drop),
        other => other.map(drop),
    };
    // If any of it fails, the next reader meets the same error.
    if let Err(StoreError::Unsupported { .. }) = removed
        && let Ok(Some(there)) = store.get_manifest(name)
        && is_useless(&there)
    {
        let _ = store.delete_manifest(name);
    }
}
