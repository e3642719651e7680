//! Stores that lose, change or invent chunks and manifests.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use transload_archive::{ArchiveError, Found, NAMES, Part, Prompt, SaveRequest};
use transload_layout::Rank;
use transload_store::backend::{MemoryStore, Tier, TierStore, Write};
use transload_store::{Backend, ManifestName};
use transload_test_stores::{Flaw, Flawed, Meanwhile, Step};

use crate::engines::{Engine, archive};
use crate::models::{attention, side};

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
            let changed = Arc::new(Flawed::default());
            let store: Arc<dyn Backend> = changed.clone();
            let archive = archive(&store, &here).with_threads(1);
            let engine = Engine::computed(&here, 1024, 3);
            engine.save(&archive, &prompt, &request).unwrap();
            let hash = changed.chunks()[n];
            let mut bytes = changed.store.get_chunk(&hash).unwrap().unwrap().to_vec();
            let flaw = match how {
                0 => Flaw::Lost,
                1 => {
                    bytes[n * 100] ^= 4;
                    Flaw::Other(bytes.into())
                }
                2 => Flaw::Other(bytes[1..].to_vec().into()),
                3 => Flaw::Other(Bytes::new()),
                _ => Flaw::Refused,
            };
            changed.spoil(hash, flaw);
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
            changed.mend();
            engine.save(&archive, &prompt, &request).unwrap();
            assert_eq!(archive.find(&prompt).unwrap().tokens(), 1024);
        }
    }
}

/// Only a tier that has every chunk can report one as lost or damaged.
#[test]
fn a_copy_that_is_wrong_in_a_tier_costs_nothing() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let here = document(2);
    for flaw in [Flaw::Other(vec![7; 100].into()), Flaw::Other(Bytes::new()), Flaw::Refused, Flaw::Lost] {
        let above = Arc::new(Flawed::never_healing());
        let tiers = vec![Tier::new("above", above.clone()), Tier::new("below", Arc::new(MemoryStore::new()))];
        let store: Arc<dyn Backend> = Arc::new(TierStore::new(tiers, Write::Through).unwrap());
        let archive = archive(&store, &here);
        let engine = Engine::computed(&here, 1024, 3);
        engine.save(&archive, &prompt, &SaveRequest::tokens(1024)).unwrap();
        above.spoil(above.chunks()[3], flaw);
        let (restored, expected) = (Engine::new(&here, 1024), Engine::new(&here, 1024));
        let found = archive.find(&prompt).unwrap();
        restored.restore(&archive, &found, 0).unwrap();
        engine.transfer_needed(&expected, 0, 1024);
        assert!(restored.bytes() == expected.bytes());
        assert_eq!(archive.find(&prompt).unwrap().tokens(), 1024);
    }
}

/// A store that checks what it reads reports a damaged root by itself. The rest of the batch is read.
#[test]
fn a_root_that_the_store_refuses_ends_the_prefix() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let changed = Arc::new(Flawed::default());
    let store: Arc<dyn Backend> = changed.clone();
    let here = document(2);
    let archive = archive(&store, &here);
    let request = SaveRequest::tokens(1024);
    let engine = Engine::computed(&here, 1024, 3);
    engine.save(&archive, &prompt, &request).unwrap();
    changed.refuse(archive.keys(&prompt)[3].root_name());
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 512);
    assert!(!archive.missing(&prompt, &request).unwrap().is_empty());
}

/// A root is saved again, with the same bytes, after a reader found it broken and before the reader removes it.
#[test]
fn a_root_that_is_saved_again_meanwhile_is_not_removed() {
    let tokens: Vec<u32> = (0..256).collect();
    let prompt = Prompt::new(&tokens);
    let here = document(2);
    let cases = [
        (None, 0),
        (Some((Step::LookUp, Meanwhile::Mends)), 256),
        (Some((Step::LookUp, Meanwhile::Silences)), 256),
        (Some((Step::Delete, Meanwhile::Puts)), 256),
    ];
    for (meanwhile, left) in cases {
        let changed = Arc::new(Flawed::default());
        let store: Arc<dyn Backend> = changed.clone();
        let archive = archive(&store, &here);
        let engine = Engine::computed(&here, 256, 3);
        engine.save(&archive, &prompt, &SaveRequest::tokens(256)).unwrap();
        let found = archive.find(&prompt).unwrap();
        changed.spoil(changed.chunks()[0], Flaw::Lost);
        changed.meanwhile(meanwhile);
        let error = engine.restore(&archive, &found, 0).unwrap_err();
        assert!(matches!(error, ArchiveError::Missing { .. }), "{error}");
        let found = archive.find(&prompt).unwrap();
        assert_eq!(found.tokens(), left, "{meanwhile:?}");
    }
}

/// A store that cannot tell two puts apart loses a piece. The root must go, or each load would fail and no save would
/// repair it.
#[test]
fn a_store_without_revisions_heals() {
    let tokens: Vec<u32> = (0..1024).collect();
    let prompt = Prompt::new(&tokens);
    let request = SaveRequest::tokens(1024);
    let here = document(2);
    for without in [Step::LookUp, Step::Delete] {
        let changed = Arc::new(Flawed::without_revisions(without));
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
        changed.spoil(changed.chunks()[3], Flaw::Lost);
        let error = load().unwrap_err();
        assert!(matches!(error, ArchiveError::Missing { .. }), "{error}");
        assert!(!archive.missing(&prompt, &request).unwrap().is_empty());
        let (before, _) = load().unwrap();
        assert!(before < 1024);
        // Whoever puts the piece again has it there.
        changed.mend();
        engine.save(&archive, &prompt, &request).unwrap();
        let expected = Engine::new(&here, 1024);
        engine.transfer_needed(&expected, 0, 1024);
        assert!(load().unwrap() == (1024, expected.bytes()));
    }
}

/// A save takes longer than the grace period of a collection: its parts are removed, and perhaps its pieces.
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
    let changed = Arc::new(Flawed::default());
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
    changed.spoil(changed.chunks()[0], Flaw::Lost);
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
    /// Prefixes, parts and lists of missing pieces may come from other processes.
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
