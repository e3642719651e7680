//! Names and keys from outside never leave the root, and neither do links inside it.

use std::os::unix::fs::symlink;
use std::path::Path;

use transload_store::backend::Backend;
use transload_store::{ChunkHash, StoreError};

use crate::saving::{Random, count, name, open};

fn tree(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        all.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            all.extend(tree(&entry.path()));
        }
    }
    all.sort();
    all
}

const PARTS: [&str; 16] = [
    "..",
    "/",
    ".",
    "\\",
    "a",
    "chunks",
    "manifests",
    "packs",
    "tmp",
    "~",
    "%2e%2e",
    "\n",
    "é",
    "-rf",
    "kv_store_format",
    "\u{202e}",
];

#[test]
fn random_names_and_keys_stay_inside() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    let root = outside.path().join("store");
    let store = open(&root);
    let mut random = Random(1);
    let names = count("TRANSLOAD_TEST_NAMES", 3000);
    for n in 0..names {
        let parts = (0..random.below(12)).map(|_| PARTS[random.below(16) as usize]);
        let text = format!("{}{n}", parts.collect::<String>());
        let bytes: Vec<u8> = (0..1 + random.below(64)).map(|_| random.below(256) as u8).collect();
        let key = ChunkHash::new(&bytes).unwrap();
        let known = n < 16 && store.get_chunk(&key).unwrap().is_some();
        assert_eq!(store.get_manifest(&name(&text)).unwrap(), None, "{text:?}");
        if !known {
            store.put_chunk(&key, &bytes).unwrap();
            assert_eq!(store.get_chunk(&key).unwrap().unwrap(), bytes);
        }
        // Flushing takes its time.
        if n % (names / 60).max(1) == 0 {
            store.put_manifest(&name(&text), text.as_bytes()).unwrap();
            assert_eq!(store.get_manifest(&name(&text)).unwrap().unwrap(), text);
        }
    }
    store.put_manifest(&name("end"), b"").unwrap();
    let outer: Vec<_> = tree(outside.path()).into_iter().filter(|path| !path.starts_with(&root)).collect();
    assert_eq!(outer, [outside.path().join("precious")]);
    for path in tree(&root) {
        let inner = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        let last = inner.rsplit('/').next().unwrap();
        let ours = ["kv_store_format", "generation", "usage", "store.lock", "gate.lock", "tmp", "packs", "manifests"];
        assert!(ours.contains(&inner) || last.trim_end_matches(".pack").chars().all(hex), "{inner}");
    }
}

#[test]
fn links_inside_are_not_followed_out() {
    let outside = tempfile::tempdir().unwrap();
    let root = outside.path().join("store");
    let store = open(&root);
    let key = ChunkHash::new(b"key").unwrap();
    store.put_chunk(&key, b"data").unwrap();
    store.put_manifest(&name("m"), b"inside").unwrap();
    let inside = store.get_manifest(&name("m")).unwrap().unwrap();
    assert_eq!(inside, "inside");
    let files = tree(&root);
    let one = |in_folder: &str| {
        let mut found =
            files.iter().filter(|path| path.is_file() && path.strip_prefix(&root).unwrap().starts_with(in_folder));
        found.next().unwrap().clone()
    };
    let (manifest, pack) = (one("manifests"), one("packs"));

    // Files that are links: what they point to is a manifest, and a pack, and is not read.
    for file in [&manifest, &pack] {
        let elsewhere = outside.path().join("elsewhere");
        std::fs::rename(file, &elsewhere).unwrap();
        symlink(&elsewhere, file).unwrap();
        let store = open(&root);
        if file == &manifest {
            let error = store.get_manifest(&name("m")).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        } else {
            assert!(store.get_chunk(&key).is_err());
        }
        std::fs::remove_file(file).unwrap();
        std::fs::rename(&elsewhere, file).unwrap();
    }

    // Folders that are links: nothing is written on the other side.
    let elsewhere = outside.path().join("folder");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::remove_dir(root.join("tmp")).unwrap();
    symlink(&elsewhere, root.join("tmp")).unwrap();
    assert!(store.put_chunk(&ChunkHash::new(b"new").unwrap(), b"data").is_err());
    assert!(store.put_manifest(&name("n"), b"").is_err());
    assert_eq!(tree(&elsewhere).len(), 0);
}
