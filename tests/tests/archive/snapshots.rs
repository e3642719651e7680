//! Windows and recurrent state: where a prefix can go on.

use std::sync::Arc;

use serde_json::{Value, json};
use transload_archive::{Archive, Prompt, SaveRequest};
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::engines::{Engine, Tally, archive};
use crate::models::{attention, mamba, side};

fn ids(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

/// A hybrid model continues past a window and a state, and is saved and restored as its engine left it.
#[test]
fn a_prefix_goes_on_where_every_group_has_a_snapshot() {
    let groups = [
        attention("full", "0", json!({})),
        attention("window", "1", json!({"sliding_window": 300})),
        mamba("2-3", "DS"),
    ];
    let (here, there) = (side(2, 1, 16, None, &groups), side(1, 1, 64, Some("HND"), &groups));
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &here);
    let tokens = ids(1536);
    let prompt = Prompt::new(&tokens);
    let found = || archive.find(&prompt).unwrap().tokens();

    // At 600 tokens: blocks before 300 are gone, the state is of no chunk's end.
    let mut engine = Engine::computed(&here, 600, 1);
    engine.drop_blocks(1, 301);
    let request = SaveRequest::tokens(600).with_state(600);
    assert_eq!(engine.save(&archive, &prompt, &request).unwrap().0, 2);
    assert_eq!(found(), 0, "nothing goes on at 256 or 512");

    // At 1024 tokens everything that goes on there is at hand.
    let mut engine = Engine::computed(&here, 1024, 1);
    engine.drop_blocks(1, 725);
    let request = SaveRequest::tokens(1024).with_state(1024);
    assert_eq!(engine.save(&archive, &prompt, &request).unwrap().0, 2);
    assert_eq!(found(), 1024);

    // At 1536 tokens its window is at hand, and no state.
    let mut engine = Engine::computed(&here, 1536, 1);
    engine.drop_blocks(1, 1237);
    assert_eq!(engine.save(&archive, &prompt, &SaveRequest::tokens(1536)).unwrap().0, 2);
    assert_eq!(found(), 1024);
    // The state comes later: the root at 1536 is written once more, with it; none of the others is.
    let request = SaveRequest::tokens(1536).with_state(1536);
    assert_eq!(engine.save(&archive, &prompt, &request).unwrap().0, 1);
    assert_eq!(found(), 1536);
    assert_eq!(engine.save(&archive, &prompt, &request).unwrap(), (0, 0));

    let whole = archive.find(&prompt).unwrap();
    assert_eq!(whole.clone().shorten(1535).tokens(), 1024);
    assert_eq!(whole.clone().shorten(1023).tokens(), 0);
    for found in [whole.clone(), whole.shorten(1100)] {
        let end = found.tokens();
        let (restored, expected) = (Engine::new(&there, 1536), Engine::new(&there, 1536));
        restored.restore(&archive, &found, 0).unwrap();
        Engine::computed(&here, 1536, 1).transfer_needed(&expected, 0, end);
        assert!(restored.bytes() == expected.bytes(), "{end} tokens");
    }
}

/// Large blocks make an engine keep more than the window.
#[test]
fn whole_chunks_of_a_window_are_the_same_piece_in_every_snapshot() {
    let groups = |window| [attention("window", "0-1", json!({"sliding_window": window}))];
    let saved = |document: &Value, tokens: u32| {
        let tally = Arc::new(Tally::default());
        let store: Arc<dyn Backend> = tally.clone();
        let archive = archive(&store, document);
        let engine = Engine::computed(document, tokens.into(), 1);
        let ids = ids(tokens);
        let request = SaveRequest::tokens(tokens.into());
        engine.save(&archive, &Prompt::new(&ids), &request).unwrap();
        tally.stored()
    };
    let bytes = 2 * 32 * 2 * 2;
    // Four token chunks, each whole in all windows it is part of.
    assert_eq!(saved(&side(1, 1, 16, None, &groups(600)), 1024), (4 * 8, 1024 * 8 * bytes));
    // The last 100 tokens of each of four chunks.
    assert_eq!(saved(&side(1, 1, 16, None, &groups(101)), 1024), (4 * 8, 400 * 8 * bytes));
}

/// Returns a hybrid model's engine that has computed 256 tokens, and an archive for it.
fn hybrid() -> (Arc<dyn Backend>, Archive, Engine) {
    let here = side(2, 1, 16, None, &[attention("full", "0", json!({})), mamba("1", "DS")]);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &here);
    (store, archive, Engine::computed(&here, 256, 1))
}

/// One engine has a state at a position, the other does not, and either may ask first what is missing.
#[test]
fn a_save_takes_no_snapshot_away() {
    let (_, archive, engine) = hybrid();
    let tokens = ids(256);
    let prompt = Prompt::new(&tokens);
    let without = SaveRequest::tokens(256);
    let missing = archive.missing(&prompt, &without).unwrap();
    let parts = engine.parts(&archive, &missing).unwrap();
    engine.save(&archive, &prompt, &without.with_state(256)).unwrap();
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 256);
    assert_eq!(archive.publish(&missing, &parts).unwrap().roots, 0);
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 256);
}

/// The ranks have saved only its snapshot, so the next save writes it whole.
#[test]
fn a_root_that_is_evicted_before_it_gets_its_snapshot_stays_away() {
    let (store, archive, engine) = hybrid();
    let tokens = ids(256);
    let prompt = Prompt::new(&tokens);
    engine.save(&archive, &prompt, &SaveRequest::tokens(256)).unwrap();
    let request = SaveRequest::tokens(256).with_state(256);
    let missing = archive.missing(&prompt, &request).unwrap();
    let parts = engine.parts(&archive, &missing).unwrap();
    store.delete_manifest(&archive.keys(&prompt)[1].root_name()).unwrap();
    assert_eq!(archive.publish(&missing, &parts).unwrap().roots, 0);
    assert_eq!(engine.save(&archive, &prompt, &request).unwrap().0, 1);
    assert_eq!(archive.find(&prompt).unwrap().tokens(), 256);
}

/// A long prompt that is saved needs no more pieces, although its earlier windows were gone at the time.
#[test]
fn windows_that_were_gone_are_not_asked_for_again() {
    let groups = [attention("full", "0", json!({})), attention("window", "1", json!({"sliding_window": 300}))];
    let here = side(1, 1, 16, None, &groups);
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let archive = archive(&store, &here);
    let tokens = ids(1500);
    let prompt = Prompt::new(&tokens);
    let mut engine = Engine::computed(&here, 1280, 1);
    engine.drop_blocks(1, 981);
    let request = SaveRequest::tokens(1280);
    assert_eq!(engine.save(&archive, &prompt, &request).unwrap().0, 5);
    assert!(archive.missing(&prompt, &request).unwrap().is_empty());
}
