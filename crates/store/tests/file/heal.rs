//! A damaged chunk is stored again when it is put again, and a collection keeps the intact copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use transload_store::backend::CollectOptions;
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};

fn open(root: &Path) -> FileStore {
    FileStore::open(root, FileOptions::default()).unwrap()
}

fn pack(root: &Path) -> PathBuf {
    let folders = fs::read_dir(root.join("packs")).unwrap();
    let mut packs = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    packs.next().unwrap().unwrap().path()
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[100] ^= 1;
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
    let mut permissions = fs::metadata(path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(path, permissions).unwrap();
}

fn faults(store: &FileStore) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |fault: transload_store::backend::Fault| faults.push(fault.what);
    let inventory = store.inventory().unwrap();
    inventory.verify(&mut |_| (), &mut fault).unwrap();
    faults
}

/// One handle finds the damage, by reading or by verifying. Another one, opened before or after that, puts the chunk.
#[test]
fn whoever_puts_a_damaged_chunk_stores_it_anew() {
    for (verifies, opens_later) in [(false, false), (false, true), (true, false), (true, true)] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("kv");
        let (hash, data) = (ChunkHash::new(&[7; 32]).unwrap(), vec![7; 5000]);
        // The same pack holds another chunk, which is whole.
        let (other, name) = (ChunkHash::new(&[8; 32]).unwrap(), ManifestName::new("m"));
        let name = name.unwrap();
        let (finder, before) = (open(&root), open(&root));
        before.put_chunk(&hash, &data).unwrap();
        before.put_chunk(&other, &[8; 7000]).unwrap();
        before.put_manifest(&name, hash.as_bytes()).unwrap();
        assert_eq!(before.put_chunk(&hash, &data).unwrap(), Put::AlreadyThere);
        damage(&pack(&root));
        match verifies {
            true => assert_eq!(faults(&finder).len(), 1),
            false => drop(finder.get_chunk(&hash).unwrap_err()),
        }

        let healer = if opens_later { open(&root) } else { before };
        assert_eq!(healer.put_chunk(&hash, &data).unwrap(), Put::Stored);
        assert_eq!(healer.put_chunk(&other, &[8; 7000]).unwrap(), Put::AlreadyThere);
        let again = ManifestName::new("again").unwrap();
        healer.put_manifest(&again, hash.as_bytes()).unwrap();
        assert_eq!(healer.put_chunk(&hash, &data).unwrap(), Put::AlreadyThere);
        for store in [&healer, &finder, &open(&root)] {
            assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
        }

        // The damaged copy is of no more use, though most of its pack is.
        assert_eq!(faults(&finder).len(), 1);
        let options = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
        let inventory = finder.inventory().unwrap();
        inventory.collect(&options, &mut |_| ()).unwrap();
        let last = open(&root);
        assert_eq!(faults(&last), [""; 0]);
        assert_eq!(last.get_chunk(&hash).unwrap().unwrap(), data);
        assert_eq!(last.get_chunk(&other).unwrap().unwrap(), [8; 7000][..]);
        let names = fs::read_dir(root.join("packs")).unwrap();
        let names = names.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        let mut names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
        assert!(names.all(|name| name.ends_with(".pack")));
    }
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

        damage(&pack(&root));

        let store = open(&root);
        let error = store.get_chunk(&hash).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(store.put_chunk(&hash, &data).unwrap(), Put::Stored);
        let again = ManifestName::new("again").unwrap();
        store.put_manifest(&again, hash.as_bytes()).unwrap();
        drop(store);

        let collector = open(&root);
        let inventory = collector.inventory().unwrap();
        let options = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
        inventory.collect(&options, &mut |_| ()).unwrap();
        let read = open(&root).get_chunk(&hash).unwrap();
        assert_eq!(read.as_deref(), Some(&data[..]), "round {round}");
    }
}
