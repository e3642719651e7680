//! Stores that lose, change or invent things.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use transload_archive::{ArchiveError, Found, NAMES, Part, Prompt, SaveRequest};
use transload_layout::Rank;
use transload_store::backend::{MemoryStore, Revision, Tier, TierStore, Write};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError};
use transload_test_stores::forward;

use crate::engines::{Engine, archive};
use crate::models::{attention, side};

/// A store whose contents a test can change.
#[derive(Debug, Default)]
struct Changed {
    store: MemoryStore,
    chunks: Mutex<Vec<ChunkHash>>,
    /// What is read of the n-th chunk instead.
    instead: Mutex<Option<(usize, Instead)>>,
    /// A manifest that is found to be damaged.
    refused: Mutex<Option<ManifestName>>,
    /// What somebody else does just before a step of a removal.
    meanwhile: Mutex<Option<(Step, Meanwhile)>>,
    without_revisions: Option<Without>,
}

/// What a store that cannot tell two puts apart refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// As behind `kv_store_v1`.
    Any,
    /// As S3 without conditional puts.
    Deleting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    LookUp,
    Delete,
}

#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// Puts the same root once more.
    Root,
    /// Puts what was missing.
    Piece,
    /// Unplugs the store of the chunks.
    Silence,
}

impl Changed {
    fn meanwhile(&self, step: Step, name: &ManifestName) {
        let mut meanwhile = self.meanwhile.lock().unwrap();
        match meanwhile.take_if(|(at, _)| *at == step) {
            None => {}
            Some((_, Meanwhile::Root)) => {
                let root = self.store.get_manifest(name).unwrap().unwrap();
                self.store.put_manifest(name, &root).unwrap();
            }
            Some((_, Meanwhile::Piece)) => *self.instead.lock().unwrap() = None,
            Some((_, Meanwhile::Silence)) => {
                *self.instead.lock().unwrap() = Some((0, Instead::Silence));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Instead {
    Nothing,
    Bytes(Bytes),
    /// The store checks what it reads itself.
    Refusal,
    /// The store cannot be asked.
    Silence,
}

fn without_revisions() -> StoreError {
    StoreError::Unsupported { what: "telling two puts of a manifest apart", why: "a test says so".to_owned() }
}

fn refusal() -> StoreError {
    StoreError::Damaged { what: "it".to_owned(), how: "by a test".to_owned() }
}

impl Backend for Changed {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let put = self.store.put_chunk(hash, data)?;
        if put == Put::Stored {
            self.chunks.lock().unwrap().push(*hash);
        }
        Ok(put)
    }
    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        if let Some((n, instead)) = &*self.instead.lock().unwrap()
            && self.chunks.lock().unwrap()[*n] == *hash
        {
            return match instead {
                Instead::Nothing => Ok(None),
                Instead::Bytes(bytes) => Ok(Some(bytes.clone())),
                Instead::Refusal => Err(refusal()),
                Instead::Silence => Err(StoreError::remote("get a chunk", "nobody answers")),
            };
        }
        self.store.get_chunk(hash)
    }
    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        if self.refused.lock().unwrap().as_ref() == Some(name) {
            return Err(refusal());
        }
        self.store.get_manifest(name)
    }
    fn manifest_revision(&self, name: &ManifestName) -> Result<Option<(Bytes, Revision)>, StoreError> {
        self.meanwhile(Step::LookUp, name);
        if self.without_revisions == Some(Without::Any) {
            return Err(without_revisions());
        }
        self.store.manifest_revision(name)
    }
    fn delete_revision(&self, name: &ManifestName, read: &Revision) -> Result<bool, StoreError> {
        self.meanwhile(Step::Delete, name);
        if self.without_revisions.is_some() {
            return Err(without_revisions());
        }
        self.store.delete_revision(name, read)
    }

    forward!(store: put_manifest, delete_manifest);
}

fn document(tp: u32) -> Value {
    side(tp, 1, 16, None, &[attention("attn", "0-1", json!({"heads": 2}))])
}

#[test]
fn a_piece_that_is_gone_or_changed_is_an_error_and_is_saved_anew() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let request = SaveRequest::tokens(1024);
    let (here, there) = (document(2), document(1));
    for n in 0..8 {
        for how in 0..5 {
            let changed = Arc::new(Changed::default());
            let store: Arc<dyn Backend> = changed.clone();
            let archive = archive(&store, &here).with_threads(1);
            let engine = Engine::computed(&here, 1024, 3);
            engine.save(&archive, &prompt, &request).unwrap();
            let hash = changed.chunks.lock().unwrap()[n];
            let mut bytes = changed.store.get_chunk(&hash).unwrap().unwrap().to_vec();
            let instead = match how {
                0 => Instead::Nothing,
                1 => {
                    bytes[n * 100] ^= 4;
                    Instead::Bytes(bytes.into())
                }
                2 => Instead::Bytes(bytes[1..].to_vec().into()),
                3 => Instead::Bytes(Bytes::new()),
                _ => Instead::Refusal,
            };
            *changed.instead.lock().unwrap() = Some((n, instead));
            let found = archive.find(&prompt).unwrap();
            assert_eq!(found.tokens(), 1024);
            let reader = Engine::new(&there, 1024);
            let usable = match (reader.restore(&archive, &found, 0).unwrap_err(), how) {
                (ArchiveError::Missing { usable, hash: lost }, 0) if lost == hash => usable,
                (ArchiveError::Damaged { usable, hash: lost }, 1..) if lost == hash => usable,
                (error, _) => panic!("{error}"),
            };
            // What comes before it is found, and can be restored.
            let found = archive.find(&prompt).unwrap();
            assert_eq!(found.tokens(), usable);
            let (restored, expected) = (Engine::new(&there, 1024), Engine::new(&there, 1024));
            restored.restore(&archive, &found, 0).unwrap();
            if usable > 0 {
                engine.transfer_needed(&expected, 0, usable);
            }
            assert!(restored.bytes() == expected.bytes());
            // A later save closes the hole, once the store has let go of what is damaged: it keeps what it has.
            *changed.instead.lock().unwrap() = None;
            engine.save(&archive, &prompt, &request).unwrap();
            assert_eq!(archive.find(&prompt).unwrap().tokens(), 1024);
        }
    }
}

/// Only the tier that has everything can say that something is lost or damaged.
#[test]
fn a_copy_that_is_wrong_in_a_tier_costs_nothing() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let here = document(2);
    for instead in
        [Instead::Bytes(vec![7; 100].into()), Instead::Bytes(Bytes::new()), Instead::Refusal, Instead::Nothing]
    {
        let above = Arc::new(Changed::default());
        let tiers = vec![Tier::new("above", above.clone()), Tier::new("below", Arc::new(MemoryStore::new()))];
        let store: Arc<dyn Backend> = Arc::new(TierStore::new(tiers, Write::Through).unwrap());
        let archive = archive(&store, &here);
        let engine = Engine::computed(&here, 1024, 3);
        engine.save(&archive, &prompt, &SaveRequest::tokens(1024)).unwrap();
        *above.instead.lock().unwrap() = Some((3, instead));
        let (restored, expected) = (Engine::new(&here, 1024), Engine::new(&here, 1024));
        let found = archive.find(&prompt).unwrap();
        restored.restore(&archive, &found, 0).unwrap();
        engine.transfer_needed(&expected, 0, 1024);
        assert!(restored.bytes() == expected.bytes());
        assert_eq!(archive.find(&prompt).unwrap().tokens(), 1024);
    }
}

/// A store that checks what it reads says itself that a root is damaged; the rest of the batch is none the worse.
#[test]
fn a_root_that_the_store_refuses_ends_the_prefix() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let changed = Arc::new(Changed::default());
    let store: Arc<dyn Backend> = changed.clone();
    let here = document(2);
    let archive = archive(&store, &here);
    let request = SaveRequest::tokens(1024);
    let engine = Engine::computed(&here, 1024, 3);
    engine.save(&archive, &prompt, &request).unwrap();
    *changed.refused.lock().unwrap() = Some(archive.keys(&prompt)[3].root_name());
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 512);
    assert!(!archive.missing(&prompt, &request).unwrap().is_empty());
}

/// Between a reader's finding that a root is of no use and its removal, somebody saves it again: with the same bytes.
#[test]
fn a_root_that_is_saved_again_meanwhile_is_not_removed() {
    let tokens: Vec<u32> = (0..256).collect();
    let prompt = Prompt::new(&tokens);
    let here = document(2);
    let cases = [
        (None, 0),
        (Some((Step::LookUp, Meanwhile::Piece)), 256),
        (Some((Step::LookUp, Meanwhile::Silence)), 256),
        (Some((Step::Delete, Meanwhile::Root)), 256),
    ];
    for (meanwhile, left) in cases {
        let changed = Arc::new(Changed::default());
        let store: Arc<dyn Backend> = changed.clone();
        let archive = archive(&store, &here);
        let engine = Engine::computed(&here, 256, 3);
        engine.save(&archive, &prompt, &SaveRequest::tokens(256)).unwrap();
        let found = archive.find(&prompt).unwrap();
        *changed.instead.lock().unwrap() = Some((0, Instead::Nothing));
        *changed.meanwhile.lock().unwrap() = meanwhile;
        let error = engine.restore(&archive, &found, 0).unwrap_err();
        assert!(matches!(error, ArchiveError::Missing { .. }), "{error}");
        let found = archive.find(&prompt).unwrap();
        assert_eq!(found.tokens(), left, "{meanwhile:?}");
    }
}

/// A store that cannot tell two puts apart loses a piece. If its root stayed, each load would fail and no save mend it.
#[test]
fn a_store_without_revisions_heals() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let request = SaveRequest::tokens(1024);
    let here = document(2);
    for without in [Without::Any, Without::Deleting] {
        let changed = Arc::new(Changed { without_revisions: Some(without), ..Changed::default() });
        let store: Arc<dyn Backend> = changed.clone();
        let archive = archive(&store, &here).with_threads(1);
        let engine = Engine::computed(&here, 1024, 3);
        engine.save(&archive, &prompt, &request).unwrap();
        let load = || {
            let found = archive.find(&prompt).unwrap();
            let reader = Engine::new(&here, 1024);
            let restored = reader.restore(&archive, &found, 0);
            restored.map(|_| (found.tokens(), reader.bytes()))
        };
        *changed.instead.lock().unwrap() = Some((3, Instead::Nothing));
        let error = load().unwrap_err();
        assert!(matches!(error, ArchiveError::Missing { .. }), "{error}");
        assert!(!archive.missing(&prompt, &request).unwrap().is_empty());
        let (before, _) = load().unwrap();
        assert!(before < 1024);
        // Whoever puts the piece again has it there.
        *changed.instead.lock().unwrap() = None;
        engine.save(&archive, &prompt, &request).unwrap();
        let expected = Engine::new(&here, 1024);
        engine.transfer_needed(&expected, 0, 1024);
        assert!(load().unwrap() == (1024, expected.bytes()));
    }
}

/// A save that took longer than the grace period of a collection: its parts went, and maybe its pieces.
#[test]
fn a_save_whose_part_was_collected_is_not_published() {
    let tokens: Vec<u32> = (0..256).collect();
    let prompt = Prompt::new(&tokens);
    let here = document(2);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &here);
    let engine = Engine::computed(&here, 256, 3);
    let missing = archive.missing(&prompt, &SaveRequest::tokens(256)).unwrap();
    let save = |rank| engine.save_rank(&archive, Rank(rank), &missing).unwrap();
    let parts = [save(0), save(1)];
    let name = format!("{}part/{}", NAMES, blake3::hash(&parts[1].encode()).to_hex());
    store.delete_manifest(&ManifestName::new(name).unwrap()).unwrap();
    let published = archive.publish(&missing, &parts);
    assert!(matches!(published, Err(ArchiveError::Expired)), "{published:?}");
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 0);
}

#[test]
fn a_root_that_was_replaced_is_not_removed() {
    let tokens: Vec<u32> = (0..256).collect();
    let prompt = Prompt::new(&tokens);
    let changed = Arc::new(Changed::default());
    let store: Arc<dyn Backend> = changed.clone();
    let here = document(2);
    let archive = archive(&store, &here);
    let request = SaveRequest::tokens(256);
    let engine = Engine::computed(&here, 256, 3);
    engine.save(&archive, &prompt, &request).unwrap();
    let old = archive.find(&prompt).unwrap();
    let name = archive.keys(&prompt)[1].root_name();
    store.delete_manifest(&name).unwrap();
    let other = Engine::computed(&here, 256, 4);
    other.save(&archive, &prompt, &request).unwrap();
    // A piece of the first save goes.
    *changed.instead.lock().unwrap() = Some((0, Instead::Nothing));
    let error = engine.restore(&archive, &old, 0).unwrap_err();
    assert!(matches!(error, ArchiveError::Missing { .. }), "{error}");
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 256, "the second save's root stays");
}

#[test]
fn a_root_that_is_gone_or_changed_ends_the_prefix() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let here = document(2);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &here);
    let engine = Engine::computed(&here, 1024, 3);
    let request = SaveRequest::tokens(1024);
    engine.save(&archive, &prompt, &request).unwrap();
    let keys = archive.keys(&prompt);
    for hole in 1..=4_usize {
        let name = keys[hole].root_name();
        let whole = store.get_manifest(&name).unwrap().unwrap();
        let found = || archive.find(&prompt).unwrap().tokens();
        store.delete_manifest(&name).unwrap();
        assert_eq!(found(), 256 * (hole as u64 - 1));
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            store.put_manifest(&name, &changed).unwrap();
            assert_eq!(found(), 256 * (hole as u64 - 1), "bit {bit}");
        }
        // The root of another prefix.
        let other = store.get_manifest(&keys[hole % 4 + 1].root_name()).unwrap().unwrap();
        store.put_manifest(&name, &other).unwrap();
        assert_eq!(found(), 256 * (hole as u64 - 1));
        assert_eq!(engine.save(&archive, &prompt, &request).unwrap().1, 0, "no chunk is written again");
        assert_eq!(found(), 1024);
    }
}

proptest! {
    /// Prefixes, parts and lists of what is missing may come from other processes.
    #[test]
    fn what_comes_from_elsewhere_is_used_only_if_it_is_of_this_cache(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let tokens: Vec<u32> = (0..512).collect();
        let prompt = Prompt::new(&tokens);
        let here = document(2);
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let archive = archive(&store, &here);
        let engine = Engine::computed(&here, 512, 3);
        let missing = archive.missing(&prompt, &SaveRequest::tokens(512)).unwrap();
        let rank = transload_layout::Rank(0);
        let part = engine.save_rank(&archive, rank, &missing).unwrap();
        engine.save(&archive, &prompt, &SaveRequest::tokens(512)).unwrap();
        let found = archive.find(&prompt).unwrap();

        let edit = |mut bytes: Vec<u8>| {
            for (index, value) in &edits {
                let at = index.index(bytes.len());
                bytes[at] ^= value;
            }
            bytes
        };
        if let Ok(found) = postcard::from_bytes::<Found>(&edit(postcard::to_allocvec(&found).unwrap())) {
            let _ = Engine::new(&here, 512).restore(&archive, &found, 0);
        }
        let missing = postcard::from_bytes(&edit(postcard::to_allocvec(&missing).unwrap()));
        if let Ok(missing) = missing {
            let _ = engine.save_rank(&archive, rank, &missing);
            let _ = archive.publish(&missing, std::slice::from_ref(&part));
        }
        let bytes = part.encode();
        let edited = edit(bytes.clone());
        prop_assert_eq!(Part::decode(&edited).is_ok(), edited == bytes);
    }
}
