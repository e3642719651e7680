//! Archives in a folder: what a save makes durable, and what an eviction leaves.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use transload_archive::{Prompt, SaveRequest};
use transload_store::Backend;
use transload_store::backend::CollectOptions;
use transload_store::backend::file::{FileOptions, FileStore};

use crate::engines::{Engine, archive};
use crate::models::{attention, side};

/// Evictions shorten prefixes from their ends, so the rest can be restored. After a save, chunks that worker threads put
/// count as used no later than others.
#[test]
fn what_an_eviction_leaves_is_the_beginning_of_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let open = || FileStore::open(folder.path().join("kv"), FileOptions::default()).unwrap();
    let store: Arc<dyn Backend> = Arc::new(open());
    let here = side(2, 1, 16, Some("NHD"), &[attention("attn", "0-1", json!({}))]);
    let there = side(1, 1, 64, Some("HND"), &[attention("attn", "0-1", json!({}))]);
    let tokens: Vec<u32> = (0..16 * 256).collect();
    let prompt = Prompt::new(&tokens);
    let length = tokens.len() as u64;
    let archive_here = archive(&store, &here).with_threads(4);
    let engine = Engine::computed(&here, length, 1);
    // Eight saves, each two token chunks longer, as of a conversation: a pack for each.
    for end in (512..=length).step_by(512) {
        let request = SaveRequest::tokens(end);
        assert_eq!(engine.save(&archive_here, &prompt, &request).unwrap().0, 2);
    }

    let inventory = store.inventory().unwrap();
    let before = inventory.usage().unwrap();
    assert_eq!(before.manifests, 16, "the parts are gone");
    let grace = CollectOptions { grace: std::time::Duration::ZERO, ..CollectOptions::default() };
    let nothing = inventory.collect(&grace, &mut |_| ()).unwrap();
    assert_eq!((nothing.manifests, nothing.chunks), (0, 0), "roots refer to every chunk");

    let cap = CollectOptions { cap: Some(before.total_bytes * 5 / 8), ..grace };
    let collected = inventory.collect(&cap, &mut |_| ()).unwrap();
    assert!(collected.chunks >= 16, "{collected:?}");
    assert!(inventory.usage().unwrap().total_bytes <= before.total_bytes * 5 / 8);

    // As another process sees it.
    let store: Arc<dyn Backend> = Arc::new(open());
    let reader = archive(&store, &there);
    let found = reader.find(&prompt).unwrap();
    assert!((256..length).contains(&found.tokens()), "{}", found.tokens());
    let manifests = store.inventory().unwrap().usage().unwrap().manifests;
    assert_eq!(manifests * 256, found.tokens(), "no root is left that nobody can reach");
    let (restored, expected) = (Engine::new(&there, length), Engine::new(&there, length));
    restored.restore(&reader, &found, 0).unwrap();
    engine.transfer_needed(&expected, 0, found.tokens());
    assert!(restored.bytes() == expected.bytes());
}

/// A piece that is damaged on disk is an error, and its prefix ends before it from then on.
#[test]
fn damage_on_disk_ends_the_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let open = || FileStore::open(folder.path().join("kv"), FileOptions::default()).unwrap();
    let store: Arc<dyn Backend> = Arc::new(open());
    let here = side(1, 1, 16, None, &[attention("attn", "0-1", json!({}))]);
    let tokens: Vec<u32> = (0..512).collect();
    let prompt = Prompt::new(&tokens);
    let engine = Engine::computed(&here, 512, 1);
    // Not by their times: two packs may have the same one.
    let packs = || {
        let folders = std::fs::read_dir(folder.path().join("kv/packs")).unwrap();
        let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).collect::<BTreeSet<_>>()
    };
    let save = |end| engine.save(&archive(&store, &here), &prompt, &SaveRequest::tokens(end)).unwrap();
    save(256);
    let first = packs();
    save(512);
    drop(store);

    // A bit of the second pack's data.
    let both = packs();
    let second: Vec<_> = both.difference(&first).collect();
    assert_eq!((both.len(), second.len()), (2, 1));
    let path = second[0];
    let mut permissions = std::fs::metadata(path).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a file of this test")]
    permissions.set_readonly(false);
    std::fs::set_permissions(path, permissions).unwrap();
    let mut pack = std::fs::read(path).unwrap();
    pack[1000] ^= 1;
    std::fs::write(path, pack).unwrap();

    let store: Arc<dyn Backend> = Arc::new(open());
    let archive = archive(&store, &here);
    let found = archive.find(&prompt).unwrap();
    assert_eq!(found.tokens(), 512);
    let error = Engine::new(&here, 512).restore(&archive, &found, 0).unwrap_err();
    assert!(error.to_string().contains("is damaged; 256 tokens before it"), "{error}");
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 256);
}
