//! Replays every interesting input that fuzzing has found, and seeds of each kind.
//!
//! `TRANSLOAD_BLESS=1` writes the seeds anew after the format has changed.

use std::sync::Arc;

use transload_archive::objects::{LONGEST_META, LONGEST_NAME, Objects, PIECE};
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::bounds::name;
use crate::model::{content, put};

#[path = "../../../../fuzz/checks/objects_record.rs"]
mod check;
#[path = "../../../../fuzz/checks/replay.rs"]
mod replay;

fn manifest(namespace: &[u8], key: &[u8], meta: &[u8], len: usize) -> Vec<u8> {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let objects = Objects::new(store.clone(), namespace).unwrap();
    put(&objects, key, meta, &content(1, len));
    let there = store.get_manifest(&name(namespace, key)).unwrap();
    there.unwrap().to_vec()
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let whole = |manifest: Vec<u8>| [vec![0], manifest].concat();
    let body = |manifest: Vec<u8>| [&[1], &manifest[8..manifest.len() - 32]].concat();
    let (long, meta) = ([7; LONGEST_NAME], [8; LONGEST_META]);
    let mut other_length = body(manifest(b"ns", b"key", b"", 100));
    // The length, behind both names: there is a piece all the same.
    other_length[8] = 0;
    vec![
        ("whole", whole(manifest(b"ns", b"key", b"bf16", 1000))),
        ("empty", body(manifest(b"ns", b"key", b"", 0))),
        ("one-piece", body(manifest(b"ns", b"model@1@0@ff", b"bf16", 1000))),
        ("two-pieces", body(manifest(b"\0", b"..", b"", PIECE + 1))),
        ("long-names", body(manifest(&long, &long, &meta, 1))),
        ("no-key", [&[1][..], b"\x02ns\x00\x00\x00\x00"].concat()),
        ("large", [&[1][..], b"\x02ns\x01k\xff\xff\xff\xff\xff\x01\x00\x00"].concat()),
        ("other-length", other_length),
    ]
}

#[test]
fn seeds_are_current_and_the_corpus_does_no_harm() {
    replay::replay("objects_record", seeds(), 100, check::check);
}
