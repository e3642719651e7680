//! Which manifests need what is damaged.

use std::collections::HashMap;

use bytes::Bytes;
use transload::store::backend::{Inventory, References};
use transload::store::{Backend, ChunkHash, ManifestName, StoreError};

/// For each of these chunks, the manifests in whose bytes it stands, by name, of those that are listed. `None` if
/// one of them cannot be read: then nobody knows what it needs.
pub(super) fn needed_by(
    store: &dyn Backend,
    inventory: &dyn Inventory,
    chunks: &[ChunkHash],
) -> Result<Option<HashMap<ChunkHash, Vec<ManifestName>>>, StoreError> {
    let mut needed: HashMap<_, Vec<_>> = chunks.iter().map(|hash| (*hash, Vec::new())).collect();
    match find(store, inventory, &mut needed) {
        Ok(()) => {}
        Err(StoreError::Damaged { .. }) => return Ok(None),
        Err(error) => return Err(error),
    }
    for names in needed.values_mut() {
        names.sort_unstable();
        names.dedup();
    }
    Ok(Some(needed))
}

fn find(
    store: &dyn Backend,
    inventory: &dyn Inventory,
    needed: &mut HashMap<ChunkHash, Vec<ManifestName>>,
) -> Result<(), StoreError> {
    if needed.is_empty() {
        return Ok(());
    }
    let references = References::new(needed.keys().copied());
    let mut names = Vec::new();
    inventory.manifests(&mut |entry| {
        names.push(entry.name);
        Ok(())
    })?;
    for names in names.chunks(store.batch().max(1)) {
        for (name, manifest) in names.iter().zip(store.get_manifests(names)?) {
            // It may be gone since it was listed.
            let manifest: Bytes = manifest.unwrap_or_default();
            references.find(&manifest, &mut |hash| {
                needed.entry(*hash).or_default().push(name.clone());
            });
        }
    }
    Ok(())
}
