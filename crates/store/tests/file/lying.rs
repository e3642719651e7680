//! Files with impossibly large lengths in them. Reading one must fail before it allocates memory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{Backend, CollectOptions, Fault};
use transload_store::internal::format::checksum;
use transload_store::{ChunkHash, ManifestName, StoreError};

/// A length that exceeds the address space of a process, but not the maximum size of a file.
const LONG: u64 = 8 << 40;

fn store(root: &Path) -> FileStore {
    FileStore::open(root, FileOptions::default()).unwrap()
}

fn faults(store: &FileStore) -> Vec<Fault> {
    let mut faults = Vec::new();
    let inventory = store.inventory().unwrap();
    inventory.verify(&mut |_| (), &mut |fault| faults.push(fault)).unwrap();
    faults
}

/// Creates an empty sparse file of this length. Returns `None` if the file system cannot.
fn sparse(path: &Path, len: u64) -> Option<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path).unwrap();
    match file.set_len(len) {
        Ok(()) => Some(file),
        Err(error) => {
            println!("NOT RUN: no file of {len} bytes here: {error}");
            None
        }
    }
}

fn trailer(data: u64, index: u64, entries: u32, sum: u32) -> Vec<u8> {
    let mut bytes = data.to_le_bytes().to_vec();
    bytes.extend(index.to_le_bytes());
    bytes.extend(entries.to_le_bytes());
    bytes.extend(sum.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes.extend(b"kvpack\r\n");
    bytes
}

#[test]
fn a_sparse_pack_hides_nothing_but_itself() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    let hash = ChunkHash::from([7; 32]);
    drop(store(&root));
    let pack = root.join(format!("packs/a/a{}.pack", "0".repeat(31)));
    // Of an index that would be nearly everything, and of one chunk that is.
    let mut entry = vec![32];
    entry.extend(hash.as_bytes());
    let data = LONG - 53 - 40;
    for number in [0_u64, data] {
        entry.extend(number.to_le_bytes());
    }
    entry.extend(0_u32.to_le_bytes());
    let cases = [(vec![], trailer(0, LONG - 40, u32::MAX, 0)), (entry.clone(), trailer(data, 53, 1, checksum(&entry)))];
    for (index, trailer) in cases {
        let Some(file) = sparse(&pack, LONG) else {
            return;
        };
        let end = [index, trailer].concat();
        file.write_all_at(&end, LONG - end.len() as u64).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o400)).unwrap();
        let store = store(&root);
        let error = store.get_chunk(&hash).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("are the most"), "{error}");
        assert_eq!(faults(&store).len(), 1);
        fs::remove_file(&pack).unwrap();
    }
}

#[test]
fn sparse_manifests_markers_and_chunks_are_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    let name = ManifestName::new("m").unwrap();
    let store = store(&root);
    store.put_manifest(&name, b"m").unwrap();
    let full = blake3::hash(b"m").to_hex();
    let path = root.join(format!("manifests/{}/{full}", &full[..2]));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    if sparse(&path, LONG).is_none() {
        return;
    }
    let error = store.get_manifest(&name).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert_eq!(faults(&store).len(), 1);
    let inventory = store.inventory().unwrap();
    inventory.manifests(&mut |entry| panic!("{entry:?}")).unwrap();
    inventory.usage().unwrap();
    let collected = inventory.collect(&CollectOptions::default(), &mut |_| ());
    assert!(matches!(collected, Err(StoreError::Damaged { .. })), "{collected:?}");
    // Putting it again mends it.
    store.put_manifest(&name, b"m").unwrap();
    assert_eq!(store.get_manifest(&name).unwrap().unwrap(), "m");

    sparse(&root.join("kv_store_format"), LONG).unwrap();
    assert!(FileStore::open(&root, FileOptions::default()).is_err());
}
