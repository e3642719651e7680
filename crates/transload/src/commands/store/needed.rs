//! Finds the manifests that need damaged chunks.

use std::collections::HashMap;

use bytes::Bytes;
use transload::store::backend::{Inventory, References};
use transload::store::{Backend, ChunkHash, ManifestName, StoreError};

/// Returns, for each of these chunks, the listed manifests that contain its hash, by name. No such manifest does not
/// mean that the chunk is unneeded: a manifest that cannot be read or has another prefix may need it, or only a store's
/// own record next to a manifest. So such a chunk is left out, and all chunks are left out if a listed manifest cannot
/// be read.
pub(super) fn needed_by(
    store: &dyn Backend,
    inventory: &dyn Inventory,
    chunks: &[ChunkHash],
) -> Result<HashMap<ChunkHash, Vec<ManifestName>>, StoreError> {
    let mut needed: HashMap<_, Vec<_>> = chunks.iter().map(|hash| (*hash, Vec::new())).collect();
    match find(store, inventory, &mut needed) {
        Ok(()) => {}
        Err(StoreError::Damaged { .. }) => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    }
    needed.retain(|_, names| {
        names.sort_unstable();
        names.dedup();
        !names.is_empty()
    });
    Ok(needed)
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
        for (name, manifest) in names.iter().zip(inventory.peek_manifests(names)?) {
            // It may have been deleted since it was listed.
            let manifest: Bytes = manifest.unwrap_or_default();
            references.find(&manifest, &mut |hash| {
                needed.entry(*hash).or_default().push(name.clone());
            });
        }
    }
    Ok(())
}
