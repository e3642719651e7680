//! A chunk that was damaged and put again: the copy that is whole is the one that a collection keeps.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use transload_store::backend::CollectOptions;
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};

fn open(root: &Path) -> FileStore {
    FileStore::open(root, FileOptions::new()).unwrap()
}

fn pack(root: &Path) -> PathBuf {
    let folders = fs::read_dir(root.join("packs")).unwrap();
    let mut packs = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    packs.next().unwrap().unwrap().path()
}

#[test]
fn a_collection_keeps_the_copy_that_is_whole() {
    // Which copy a collection meets first is a matter of chance.
    for round in 0..12_u8 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("kv");
        let (hash, data) = (ChunkHash::new(&[round; 32]).unwrap(), vec![round; 5000]);
        let name = ManifestName::new("m").unwrap();
        let store = open(&root);
        store.put_chunk(&hash, &data).unwrap();
        store.put_manifest(&name, hash.as_bytes()).unwrap();
        drop(store);

        let path = pack(&root);
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();

        let store = open(&root);
        let error = store.get_chunk(&hash).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(store.put_chunk(&hash, &data).unwrap(), Put::Stored);
        let again = ManifestName::new("again").unwrap();
        store.put_manifest(&again, hash.as_bytes()).unwrap();
        drop(store);

        let collector = open(&root);
        let inventory = collector.inventory().unwrap();
        let options = CollectOptions::new().with_grace(Duration::ZERO);
        inventory.collect(&options, &mut |_| ()).unwrap();
        let read = open(&root).get_chunk(&hash).unwrap();
        assert_eq!(read.as_deref(), Some(&data[..]), "round {round}");
    }
}
