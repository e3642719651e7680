//! Parts of saves that died.

use std::time::Duration;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{Backend, CollectOptions, Collected};
use transload_store::{ChunkHash, ManifestName};

#[test]
fn a_collection_without_a_cap_removes_what_dead_saves_left() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path().join("kv"), FileOptions::default()).unwrap();
    let digest = "ab".repeat(32);
    let (part, root) =
        (format!("slot/transload.archive/2/part/{digest}"), format!("slot/transload.archive/2/{digest}"));
    for (n, name) in [(1, &part), (2, &root)] {
        let hash = ChunkHash::from([n; 32]);
        store.put_chunk(&hash, &[n; 100_000]).unwrap();
        let name = ManifestName::new(name.clone()).unwrap();
        store.put_manifest(&name, hash.as_bytes()).unwrap();
    }
    let collect = |grace: u64, dry_run: bool| -> Collected {
        let options = CollectOptions { grace: Duration::from_secs(grace), dry_run, ..CollectOptions::default() };
        store.inventory().unwrap().collect(&options, &mut |_| ()).unwrap()
    };
    // The save may still be under way.
    let counts = |of: Collected| (of.leftovers, of.manifests, of.chunks);
    assert_eq!(counts(collect(3600, false)), (0, 0, 0));
    assert_eq!(counts(collect(0, true)), (1, 0, 1));
    assert_eq!(counts(collect(0, false)), (1, 0, 1));
    assert!(store.get_chunk(&[1; 32].into()).unwrap().is_none());
    assert!(store.get_chunk(&[2; 32].into()).unwrap().is_some());
    let root = ManifestName::new(root).unwrap();
    assert!(store.get_manifest(&root).unwrap().is_some());
}
