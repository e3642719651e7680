//! Every input that fuzzing the formats found worth keeping, replayed.

use std::path::Path;

use transload_store::backend::Backend;
use transload_store::internal::manifest::Manifest;
use transload_store::internal::pack;

use crate::saving::{chunk, name, open};

#[path = "../../../../fuzz/checks/file_store.rs"]
mod file_store_check;

#[test]
fn inputs_that_fuzzing_found() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/file_store");
    let (mut inputs, mut packs, mut manifests) = (0, 0, 0);
    for entry in std::fs::read_dir(&corpus).unwrap() {
        let path = entry.unwrap().path();
        let data = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        file_store_check::check(&data);
        for end in (0..data.len()).step_by(data.len() / 64 + 1) {
            file_store_check::check(&data[..end]);
        }
        inputs += 1;
        packs += u32::from(pack::decode(&data).is_ok());
        manifests += u32::from(Manifest::decode(&data).is_ok());
    }
    // Those that are whole were written after the manual's page, not by this code.
    assert!(inputs >= 14 && packs >= 4 && manifests >= 2, "{inputs} {packs} {manifests}");
}

/// The public functions of the formats can read what a store writes.
#[test]
fn what_a_store_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let chunks: Vec<_> = (0..5).map(chunk).collect();
    for (hash, data) in &chunks {
        store.put_chunk(hash, data).unwrap();
    }
    store.put_manifest(&name("m"), b"data").unwrap();
    let mut todo = vec![folder.path().to_owned()];
    let (mut packs, mut manifests) = (0, 0);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        if let Ok(entries) = pack::decode(&bytes) {
            packs += 1;
            assert_eq!(entries.len(), 5);
            for (entry, (hash, data)) in entries.iter().zip(&chunks) {
                assert_eq!(&entry.hash, hash);
                let at = entry.offset as usize;
                assert_eq!(&bytes[at..at + entry.len as usize], data);
            }
        }
        if let Ok(manifest) = Manifest::decode(&bytes) {
            manifests += 1;
            let mut ascending: Vec<_> = chunks.iter().map(|(hash, _)| *hash).collect();
            ascending.sort();
            assert_eq!((manifest.name, manifest.data), ("m", &b"data"[..]));
            assert!(manifest.references().eq(ascending));
        }
    }
    assert_eq!((packs, manifests), (1, 1));
}
