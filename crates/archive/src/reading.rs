//! Reading of chunks that may be missing or damaged.

use bytes::Bytes;
use transload_store::{Backend, ChunkHash, ManifestName, StoreError};

/// Returns a chunk that was read if it is intact. Otherwise reads it again, bypassing copies that may be wrong.
///
/// # Errors
/// [`StoreError::Damaged`] if the second read returns wrong bytes too, or any other error of the store.
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

/// Removes a manifest that names a missing or damaged chunk, unless it was put again or repaired meanwhile.
/// `is_useless` tells, of the bytes stored now, whether they are still of no use.
///
/// If the store cannot tell two puts apart, a manifest that is put at the same moment may be removed too. The next save
/// writes it again, and nothing wrong is read. If the manifest stayed, every read through it would fail, and no save
/// would repair it, because it seems to exist.
pub(crate) fn forget(store: &dyn Backend, name: &ManifestName, is_useless: impl Fn(&[u8]) -> bool) {
    // Read the revision before the check: a manifest that is put after this has another revision, and a repair before
    // this is seen by the check.
    let removed = match store.manifest_revision(name) {
        Ok(Some((there, revision))) if is_useless(&there) => store.delete_revision(name, &revision).map(drop),
        other => other.map(drop),
    };
    // If this fails, the next reader gets the same error and tries again.
    if let Err(StoreError::Unsupported { .. }) = removed
        && let Ok(Some(there)) = store.get_manifest(name)
        && is_useless(&there)
    {
        let _ = store.delete_manifest(name);
    }
}
