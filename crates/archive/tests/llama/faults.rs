//! Calls of a store that fail, pieces that are gone, and saves that end in between.

use std::sync::Arc;

use transload_archive::Model as Identity;
use transload_archive::llama::States;
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ChunkHash};
use transload_test_stores::{Effect, Flaw, Flawed, Plan, at_each_call};

use crate::oracle::{f16, sorted, tokens};
use crate::{load, states};

/// After any failure, restored states are correct, and later calls work.
#[test]
fn a_call_that_fails_leaves_a_shorter_prefix_at_worst() {
    let (model, own) = (f16(2, 8), tokens(1, 700));
    let mut failures = 0;
    let faults = at_each_call(|store, _, effect, what| {
        let shared: Arc<dyn Backend> = store.clone();
        let states = states(&shared, &sorted(&model, &own[..1], false));
        for count in [300, 600, 700] {
            let state = sorted(&model, &own[..count], count == 600);
            failures += u32::from(states.save(&own[..count], &state).is_err());
            let restored = states.find(&own).and_then(|found| {
                let Some(found) = found else { return Ok(()) };
                if let Some(state) = states.restore(&found)? {
                    assert!(state == sorted(&model, &own[..found.tokens()], false), "{what}");
                }
                Ok(())
            });
            failures += u32::from(restored.is_err());
        }
        store.set_plan(Plan::new());
        // A damaged piece stays until its store lets go of it; a call that failed leaves nothing behind.
        states.save(&own, &sorted(&model, &own, true)).unwrap();
        let loaded = std::iter::repeat_with(|| load(&states, &own)).take(4);
        let (count, state) = loaded.flatten().next().unwrap();
        assert!(state == sorted(&model, &own[..count], false));
        assert!(count == 700 || matches!(effect, Effect::FlipBit(_)), "{what}: {count}");
    });
    println!("{faults} faults, {failures} of them errors");
    assert!(faults > 50 && failures > 30, "{faults}, {failures}");
}

#[test]
fn what_lost_a_piece_is_a_miss_and_healed() {
    let (model, own) = (f16(2, 8), tokens(1, 300));
    let state = sorted(&model, &own, false);
    // As they are kept: sorted, layer by layer, without what is in front of the rows.
    let rows: Vec<&[u8]> = state[16 + 300 * 12 + 8..].chunks(12 + 300 * 8).collect();
    let pieces = |sides: std::ops::Range<usize>, cells: std::ops::Range<usize>| {
        let rows = rows[sides].iter();
        let rows = rows.flat_map(|rows| &rows[12 + cells.start * 8..12 + cells.end * 8]);
        ChunkHash::from(blake3::hash(&rows.copied().collect::<Vec<u8>>()))
    };
    for (piece, left) in [(pieces(0..2, 0..256), 0), (pieces(2..4, 0..256), 0), (pieces(0..4, 256..300), 256)] {
        for flaw in [Flaw::Lost, Flaw::Refused] {
            let store = Arc::new(Flawed::default());
            let shared: Arc<dyn Backend> = store.clone();
            let states = states(&shared, &sorted(&model, &own[..1], false));
            states.save(&own, &state).unwrap();
            store.spoil(piece, flaw);
            let found = states.find(&own).unwrap().unwrap();
            assert_eq!(states.restore(&found).unwrap(), None);
            // What is left of it, if anything, is right.
            let (count, there) = load(&states, &own).unwrap_or_default();
            assert_eq!(count, left);
            assert!(count == 0 || there == sorted(&model, &own[..count], false));
            states.save(&own, &state).unwrap();
            assert!(load(&states, &own) == Some((300, state.clone())));
        }
    }
}

/// A rest that is replaced after it was found is not mistaken for the one that was found.
#[test]
fn a_rest_of_other_tokens_is_a_miss() {
    let (model, own) = (f16(1, 8), tokens(1, 50));
    let shared: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let states = states(&shared, &sorted(&model, &own[..1], false));
    let save = |own: &[u32]| states.save(own, &sorted(&model, own, false)).unwrap();
    save(&own[..40]);
    let found = states.find(&own).unwrap().unwrap();
    save(&own);
    assert_eq!(states.restore(&found).unwrap(), None);
    assert_eq!(load(&states, &own).unwrap().0, 50);

    let whole = States::whole(shared, Identity::new("m", "w")).unwrap();
    assert_eq!(whole.restore(&found).unwrap(), None);
}
