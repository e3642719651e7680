//! States of llama.cpp in a folder whose power fails, at every call that changes the disk.

use std::sync::Arc;

use transload_archive::Model;
use transload_archive::llama::{LlamaError, States};
use transload_store::internal::simulated::{Mistake, SimulatedDisk};
use transload_test_stores::assert_right;

/// The lengths of a chat's turns, in tokens.
const TURNS: [u32; 3] = [200, 300, 560];
const LOSSES: u64 = 2;

/// Returns the state of this many tokens: one layer, with four bytes for a key and four for a value.
fn state(tokens: u32) -> Vec<u8> {
    let mut words = vec![0xaf14_3cd8, 0, 1, tokens];
    words.extend((0..tokens).flat_map(|position| [position, 1, 0]));
    words.extend([0, 1]);
    for side in [1, 2] {
        words.extend([0, 4, 0]);
        words.extend((0..tokens).map(|position| position << 2 | side));
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn states(disk: &SimulatedDisk) -> Result<States, LlamaError> {
    States::new(Arc::new(disk.open_store()?), Model::new("m", "w"), &state(1))
}

/// Saves one turn after the other. Returns the length of the last one whose save succeeded, and the error of the next
/// one, if it failed.
fn live(disk: &SimulatedDisk) -> (u32, Option<LlamaError>) {
    let mut saved = 0;
    for count in TURNS {
        let tokens: Vec<u32> = (0..count).collect();
        match states(disk).and_then(|states| states.save(&tokens, &state(count))) {
            Ok(_) => saved = count,
            Err(error) => return (saved, Some(error)),
        }
    }
    (saved, None)
}

fn check(disk: &SimulatedDisk, saved: u32) -> Result<(), String> {
    let load = || {
        let states = states(disk)?;
        let prompt: Vec<u32> = (0..600).collect();
        let Some(found) = states.find(&prompt)? else {
            return Ok(Some((0, Vec::new())));
        };
        let restored = states.restore(&found)?;
        Ok(restored.map(|bytes| (found.tokens() as u32, bytes)))
    };
    match load().map_err(|error: LlamaError| error.to_string())? {
        None => Err("a piece of what is found is lost".to_owned()),
        Some((count, _)) if count < saved => Err(format!("{count} of {saved} tokens are there")),
        Some((count, bytes)) if count > 0 && bytes != state(count) => {
            Err(format!("the state of {count} tokens is not what was saved"))
        }
        Some(_) => Ok(()),
    }
}

/// Stops the process at each change and loses power. Returns the number of cases and the failures.
fn power_fails(mistake: Mistake) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (SimulatedDisk::with_store(), 0, Vec::new());
    for stop in 0.. {
        let disk = empty.copy().with_mistake(mistake);
        disk.stop_at(stop);
        let (saved, failed) = live(&disk);
        assert!(failed.is_none() || disk.is_stopped(), "{failed:?}");
        for loss in 0..LOSSES {
            points += 1;
            let left = disk.lose_power(stop << 8 | loss).with_mistake(Mistake::None);
            // What is saved then survives too.
            let checked = check(&left, saved).and_then(|()| match live(&left) {
                (_, Some(error)) => Err(format!("does not work any more: {error}")),
                (saved, None) => check(&left.lose_power(0), saved),
            });
            if let Err(how) = checked {
                wrong.push(format!("change {stop}, loss {loss}: {how}"));
            }
        }
        if !disk.is_stopped() {
            break;
        }
    }
    (points, wrong)
}

#[test]
fn what_was_saved_survives_a_loss_of_power_at_any_change() {
    assert_right(power_fails(Mistake::None), 100);
}

/// The test above must detect these mistakes.
#[test]
fn a_store_that_does_not_flush_is_found() {
    let (_, wrong) = power_fails(Mistake::NoFileFlush(".pack"));
    assert!(!wrong.is_empty());
}
