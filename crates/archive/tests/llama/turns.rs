//! Turns of chats: what they share is stored once, and the newest turn is found.

use std::sync::Arc;

use transload_archive::Model as Identity;
use transload_archive::llama::States;
use transload_store::Backend;
use transload_store::backend::MemoryStore;

use crate::oracle::{Model, f16, sorted, tokens};
use crate::{load, states};

#[test]
fn a_turn_writes_its_own_tokens_and_the_rest() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let (model, own) = (f16(3, 16), tokens(1, 1000));
    let states = states(&store, &sorted(&model, &own[..1], false));
    let cell = 6 * 16;
    let save = |count: usize| {
        let saved = states.save(&own[..count], &sorted(&model, &own[..count], false));
        saved.unwrap().bytes
    };
    assert_eq!(save(600), 600 * cell);
    assert_eq!(save(600), 0, "nothing twice");
    assert_eq!(save(900), (256 + 132) * cell);
    // It is the beginning of a rest that is there.
    assert_eq!(save(800), 0);
    assert_eq!(load(&states, &own).unwrap().0, 900);
    assert_eq!(load(&states, &own[..850]).unwrap().0, 850);

    // Another branch has its own slot.
    let branch = [&own[..780], &tokens(2, 50)].concat();
    let state = sorted(&model, &branch, false);
    assert_eq!(states.save(&branch, &state).unwrap().bytes, 62 * cell);
    assert!(load(&states, &branch) == Some((830, state)));
    assert_eq!(load(&states, &own).unwrap().0, 900);
    assert_eq!(load(&states, &tokens(3, 500)), None);
}

/// Several short chats are stored, each of them once. The same holds for chats that share their first 256 tokens.
#[test]
fn eight_chats_do_not_replace_each_other() {
    for is_whole in [false, true] {
        for shared in [0, 256, 270] {
            let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
            let model = f16(1, 4);
            let states = match is_whole {
                true => States::whole(store.clone(), Identity::new("m", "w")).unwrap(),
                false => states(&store, &sorted(&model, &[1], false)),
            };
            let chat = |seed, count| [&tokens(0, shared)[..], &tokens(seed, count)].concat();
            let save = |own: &[u32]| states.save(own, &sorted(&model, own, false)).unwrap();
            let is_kept = |own: &[u32]| load(&states, own).is_some_and(|found| found.0 == own.len());
            for turn in [20, 60, 100] {
                for seed in 1..=8 {
                    assert!(save(&chat(seed, turn)).bytes > 0);
                }
                for seed in 1..=8 {
                    let own = chat(seed, turn);
                    assert!(load(&states, &own) == Some((own.len(), sorted(&model, &own, false))));
                    assert_eq!(save(&own).bytes, 0, "nothing twice");
                }
            }
            // A ninth chat replaces one, and the remaining chats keep their slots.
            save(&chat(9, 100));
            let kept = || (1..=9).filter(|seed| is_kept(&chat(*seed, 100))).count();
            assert_eq!(kept(), 8);
            assert!(is_kept(&chat(9, 100)));
            save(&chat(9, 140));
            assert_eq!(kept(), if is_whole { 7 } else { 8 });
        }
    }
}

/// The element types of keys and values are part of every name, as is the identity.
#[test]
fn rows_of_other_types_are_never_found() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let own = tokens(1, 300);
    let of = |kind, row| Model { keys: vec![(kind, row); 2], values: vec![(1, 8); 2] };
    let saved = of(2, 36);
    let sample = |model: &Model| sorted(model, &own[..1], false);
    states(&store, &sample(&saved)).save(&own, &sorted(&saved, &own, false)).unwrap();
    // As long as q4_0, of another length, and one layer less.
    let fewer = Model { keys: vec![(2, 36)], values: vec![(1, 8)] };
    for other in [of(20, 36), of(8, 68), of(2, 18), fewer] {
        assert_eq!(load(&states(&store, &sample(&other)), &own), None);
    }
    let identity = Identity::new("m", "other weights");
    let other = States::new(store.clone(), identity, &sample(&saved)).unwrap();
    assert_eq!(load(&other, &own), None);
    assert!(load(&states(&store, &sample(&saved)), &own).is_some());
}

#[test]
fn whole_states_are_found_for_exactly_their_tokens() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let states = States::whole(store, Identity::new("m", "w")).unwrap();
    let own = tokens(1, 900);
    // Whatever follows the head.
    let state = |count: usize| {
        let mut state = sorted(&f16(1, 2), &own[..count], false);
        state.extend(b"recurrent layers");
        state
    };
    for count in [100, 256, 300, 700] {
        let saved = states.save(&own[..count], &state(count)).unwrap();
        assert_eq!(saved.bytes as usize, state(count).len());
    }
    assert_eq!(states.save(&own[..700], &state(700)).unwrap().bytes, 0);
    // Of those behind 256 tokens, the newest.
    for (prompt, found) in [(900, 700), (700, 700), (699, 300), (299, 100), (255, 100), (99, 0)] {
        match load(&states, &own[..prompt]) {
            None => assert_eq!(found, 0, "{prompt}"),
            Some(loaded) => assert!(loaded == (found, state(found)), "{prompt}: {}", loaded.0),
        }
    }
    let branch = [&own[..650], &tokens(2, 100)].concat();
    assert_eq!(load(&states, &branch).unwrap().0, 300);
    // So many prefixes are not asked for at once.
    let long = [&own[..700], &tokens(2, 40_000)].concat();
    assert_eq!(load(&states, &long).unwrap().0, 700);
}

/// The next turn may begin with this turn's prompt and another answer. Both states stay, after any number of turns.
#[test]
fn the_end_of_a_turn_does_not_replace_its_prompt() {
    for shared in [0, 250, 270] {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
        let states = States::whole(store, Identity::new("m", "w")).unwrap();
        let model = f16(1, 4);
        let found = |own: &[u32], more| {
            let (tokens, state) = load(&states, &[own, &tokens(more, 5)].concat()).unwrap();
            assert!(state == sorted(&model, &own[..tokens], false));
            tokens
        };
        for turn in 1..=30_u32 {
            let prompt = [&tokens(0, shared)[..], &tokens(1, 4 * turn as usize)].concat();
            let end = [&prompt[..], &tokens(100 + turn, 3)].concat();
            let state = |own: &[u32]| sorted(&model, own, false);
            states.save(&prompt, &state(&prompt)).unwrap();
            states.save_turn(prompt.len(), &end, &state(&end)).unwrap();
            assert_eq!(found(&prompt, 2), prompt.len(), "{shared} {turn}");
            assert_eq!(found(&end, 3), end.len(), "{shared} {turn}");
        }
    }
}
