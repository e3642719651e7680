//! A small store for tests of the operator's commands.

use std::path::Path;

use transload::store::{ChunkHash, ManifestName, open};

/// Hashes of 8 bytes, as llama.cpp has them.
pub(crate) const HASHES: [&str; 3] = ["b1946ac92492d234", "591785b794601e21", "7d793037a0760186"];

/// Fills a store with two manifests that refer to two chunks, and with a chunk that no manifest refers to.
pub(crate) fn fill(folder: &Path) {
    let uri = uri(folder);
    let hash = |i: usize| -> ChunkHash { HASHES[i].parse().expect("a hash") };
    let name = |name: &str| ManifestName::new(name).expect("a name");
    // Each manifest has its own handle. A manifest counts all chunks put on its handle as needed.
    let store = open(&uri).expect("a store");
    let text = format!(
        "{{\"model\": \"llama-3.1-8b\", \"tokens\": 512,\n \"chunks\": [\"{}\", \"{}\"]}}\n",
        HASHES[0], HASHES[1]
    );
    store.put_chunk(&hash(0), &[1; 65536]).expect("put");
    store.put_chunk(&hash(1), &[2; 40000]).expect("put");
    store.put_manifest(&name("chat-7/slot0"), text.as_bytes()).expect("published");
    let store = open(&uri).expect("a store");
    let binary = [b"\0\x01slot\xff\xfe", hash(0).as_bytes()].concat();
    store.put_manifest(&name("chat-7/slot1"), &binary).expect("published");
    let store = open(&uri).expect("a store");
    store.put_chunk(&hash(2), &[3; 30000]).expect("put");
    store.put_manifest(&name("gone"), b"").expect("published");
    store.delete_manifest(&name("gone")).expect("deleted");
}

pub(crate) fn uri(folder: &Path) -> String {
    format!("file://{}", folder.display())
}
