//! Replays every interesting input that fuzzing has found, and seeds of each kind.
//!
//! `TRANSLOAD_BLESS=1` writes the seeds anew after the format has changed.

use std::sync::Arc;

use transload_archive::{Codec, Prompt, SaveRequest};
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::engines::{Engine, archive};

#[path = "../../../fuzz/checks/archive.rs"]
mod check;
#[path = "../../../fuzz/checks/replay.rs"]
mod replay;

/// Returns one valid input of each kind.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let document = serde_json::from_str(check::DEPLOYMENT).unwrap();
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &document);
    let tokens: Vec<u32> = (0..600).collect();
    let prompt = Prompt::new(&tokens);
    let request = SaveRequest::tokens(600).with_state(512);
    let engine = Engine::computed(&document, 600, 1);
    let missing = archive.missing(&prompt, &request).unwrap();
    // The same bytes each time: a save has a random name, behind the digest of its model.
    let mut missing = postcard::to_allocvec(&missing).unwrap();
    missing[32..64].fill(7);
    let missing = postcard::from_bytes(&missing).unwrap();
    let part = engine.save_rank(&archive, transload_layout::Rank(1), &missing).unwrap();
    engine.save(&archive, &prompt, &request).unwrap();
    let found = archive.find(&prompt).unwrap();
    let root = |chunks: usize| {
        let name = archive.keys(&prompt)[chunks].root_name();
        store.get_manifest(&name).unwrap().unwrap().to_vec()
    };
    let body = |manifest: Vec<u8>| manifest[8..manifest.len() - 32].to_vec();
    let seed = |kind: u8, body: Vec<u8>| [vec![kind], body].concat();
    let mut seeds = vec![
        ("root-1", seed(0, body(root(1)))),
        ("root-2", seed(0, body(root(2)))),
        ("part", seed(1, body(part.encode()))),
        ("found", seed(2, postcard::to_allocvec(&found).unwrap())),
        ("shortened", seed(2, postcard::to_allocvec(&found.shorten(300)).unwrap())),
        ("missing", seed(3, postcard::to_allocvec(&missing).unwrap())),
    ];
    seeds.extend(encoded(&prompt, &request));
    seeds
}

/// Returns the records of an archive with a codec.
fn encoded(prompt: &Prompt<'_>, request: &SaveRequest) -> [(&'static str, Vec<u8>); 2] {
    let document = serde_json::from_str(&check::encodable()).unwrap();
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &document).with_codec(Codec::Q4);
    let engine = Engine::computed(&document, 600, 1);
    engine.save(&archive, prompt, request).unwrap();
    let root = store.get_manifest(&archive.keys(prompt)[2].root_name());
    let root = root.unwrap().unwrap();
    let found = postcard::to_allocvec(&archive.find(prompt).unwrap()).unwrap();
    [("encoded-root", [&[4], &root[8..root.len() - 32]].concat()), ("encoded-found", [&[6], &found[..]].concat())]
}

#[test]
fn seeds_are_current_and_the_corpus_does_no_harm() {
    replay::replay("archive", seeds(), 200, check::check);
}
