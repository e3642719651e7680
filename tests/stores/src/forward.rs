//! Forwards the calls that a wrapping backend does not change.

/// Hands calls of [`Backend`](transload_store::Backend) on to the backend in a field, inside an `impl Backend for …`.
///
/// ```ignore
/// forward!(inner: get_chunk, get_manifest);
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:tt: $($call:ident),* $(,)?) => { $($crate::forward_call!($inner $call);)* };
}

#[doc(hidden)]
#[macro_export]
macro_rules! forward_call {
    ($inner:tt put_chunk) => {
        $crate::forward_call!($inner put_chunk(hash: &$crate::ChunkHash, data: &[u8]) -> Result<$crate::Put>);
    };
    ($inner:tt get_chunk) => {
        $crate::forward_call!($inner get_chunk(hash: &$crate::ChunkHash) -> Result<Option<$crate::Bytes>>);
    };
    ($inner:tt put_manifest) => {
        $crate::forward_call!($inner put_manifest(name: &$crate::ManifestName, data: &[u8]) -> Result<()>);
    };
    ($inner:tt get_manifest) => {
        $crate::forward_call!($inner get_manifest(name: &$crate::ManifestName) -> Result<Option<$crate::Bytes>>);
    };
    ($inner:tt delete_manifest) => {
        $crate::forward_call!($inner delete_manifest(name: &$crate::ManifestName) -> Result<()>);
    };
    ($inner:tt manifest_revision) => {
        $crate::forward_call!($inner manifest_revision(name: &$crate::ManifestName)
            -> Result<Option<($crate::Bytes, $crate::Revision)>>);
    };
    ($inner:tt delete_revision) => {
        $crate::forward_call!($inner delete_revision(name: &$crate::ManifestName, revision: &$crate::Revision) -> Result<bool>);
    };
    ($inner:tt reread_chunk) => {
        $crate::forward_call!($inner reread_chunk(hash: &$crate::ChunkHash) -> Result<Option<$crate::Bytes>>);
    };
    ($inner:tt get_manifests) => {
        $crate::forward_call!($inner get_manifests(names: &[$crate::ManifestName]) -> Result<Vec<Option<$crate::Bytes>>>);
    };
    ($inner:tt put_manifests) => {
        $crate::forward_call!($inner put_manifests(manifests: &[($crate::ManifestName, $crate::Bytes)]) -> Result<()>);
    };
    ($inner:tt $call:ident($($argument:ident: $type:ty),*) -> Result<$answer:ty>) => {
        fn $call(&self, $($argument: $type),*) -> Result<$answer, $crate::StoreError> {
            self.$inner.$call($($argument),*)
        }
    };
    ($inner:tt batch) => {
        fn batch(&self) -> usize {
            self.$inner.batch()
        }
    };
    ($inner:tt absent_chunks) => {
        fn absent_chunks(&self, hashes: &[$crate::ChunkHash]) -> Option<Vec<$crate::ChunkHash>> {
            self.$inner.absent_chunks(hashes)
        }
    };
    ($inner:tt tiers) => {
        fn tiers(&self) -> Vec<$crate::TierStats> {
            self.$inner.tiers()
        }
    };
    ($inner:tt inventory) => {
        fn inventory(&self) -> Option<&dyn $crate::Inventory> {
            self.$inner.inventory()
        }
    };
}
