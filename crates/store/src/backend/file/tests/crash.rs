//! Processes that die and power that fails, at every call that changes the disk.

use super::super::disk::simulated::{Mistake, Random, SimulatedDisk};
use super::super::root;
use super::script::{Expected, collect, count, live, new_store, open};

/// Lives of so many steps each, each of them ended at every change it makes.
const LIVES: u64 = 8;
const STEPS: u32 = 6;
/// How many different things each of these ends leaves on the disk.
const LOSSES: u64 = 2;

/// Power fails. Returns the number of points and what was wrong at some.
fn power_fails(lives: std::ops::Range<u64>, mistake: Mistake) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (new_store(), 0, Vec::new());
    for seed in lives {
        for stop in 0.. {
            let disk = empty.copy().with_mistake(mistake);
            disk.stop_at(stop);
            let mut expected = Expected::default();
            let lived =
                open(&disk).and_then(|store| live(&store, &mut expected, &mut Random(seed), STEPS));
            assert!(lived.is_ok() || disk.is_stopped(), "{lived:?}");
            for loss in 0..LOSSES {
                points += 1;
                let left = disk.lose_power(seed << 32 | stop << 8 | loss);
                if let Err(how) = check(&left.with_mistake(Mistake::None), &expected, seed) {
                    wrong.push(format!("life {seed}, change {stop}, loss {loss}: {how}"));
                }
            }
            if !disk.is_stopped() {
                break;
            }
        }
    }
    (points, wrong)
}

/// A process dies, another one goes on where it was, and then power fails. Nothing that the first one left
/// unflushed may become something that the second one relies on.
fn dies_and_power_fails(lives: std::ops::Range<u64>, mistake: Mistake) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (new_store(), 0, Vec::new());
    for seed in lives {
        for stop in 0.. {
            let disk = empty.copy().with_mistake(mistake);
            disk.stop_at(stop);
            let mut expected = Expected::default();
            let _ =
                open(&disk).and_then(|store| live(&store, &mut expected, &mut Random(seed), STEPS));
            let done = !disk.is_stopped();
            let next = disk.copy();
            let (mut random, steps) = (Random(seed + stop), 1 + stop as u32 % 3);
            let lived = open(&next).and_then(|store| {
                if stop % 2 == 0 {
                    collect(&store)?;
                }
                live(&store, &mut expected, &mut random, steps)
            });
            if let Err(error) = lived {
                wrong.push(format!("life {seed}, change {stop}: {error}"));
            }
            for loss in 0..LOSSES {
                points += 1;
                let left = next.lose_power(seed << 32 | stop << 8 | loss);
                if let Err(how) = check(&left.with_mistake(Mistake::None), &expected, seed) {
                    wrong.push(format!("life {seed}, change {stop}, loss {loss}: {how}"));
                }
            }
            if done {
                break;
            }
        }
    }
    (points, wrong)
}

/// What is on the disk is as expected, and a store: it takes a save that survives the next loss.
fn check(disk: &SimulatedDisk, expected: &Expected, seed: u64) -> Result<(), String> {
    let store = open(disk).map_err(|error| format!("cannot be opened: {error}"))?;
    expected.check(&store)?;
    let mut expected = expected.clone();
    live(&store, &mut expected, &mut Random(seed + 1), 2)
        .map_err(|error| format!("does not work any more: {error}"))?;
    drop(store);
    let store = open(&disk.lose_power(0)).map_err(|error| error.to_string())?;
    expected
        .check(&store)
        .map_err(|how| format!("the next save: {how}"))
}

fn assert_right((points, wrong): (u64, Vec<String>)) {
    println!("{points} losses of power");
    assert!(points > 1000, "{points}");
    assert!(
        wrong.is_empty(),
        "{} of {points}, the first: {}",
        wrong.len(),
        wrong[0]
    );
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power_at_any_change() {
    assert_right(power_fails(
        0..count("TRANSLOAD_TEST_LIVES", LIVES),
        Mistake::None,
    ));
}

#[test]
fn nobody_relies_on_what_a_dead_process_did_not_flush() {
    let lives = 1000..1000 + count("TRANSLOAD_TEST_LIVES", LIVES);
    assert_right(dies_and_power_fails(lives, Mistake::None));
}

/// The tests above can fail: they find each of these mistakes.
#[test]
fn unsafe_ways_to_do_it_are_found() {
    for mistake in [
        Mistake::NoFolderFlush("packs/"),
        Mistake::NoFolderFlush("manifests/"),
        Mistake::NoFileFlush(".pack"),
        Mistake::NoFileFlush(".manifest"),
        Mistake::RenameBeforeFlush,
    ] {
        let found = (0..8).any(|seed| !power_fails(seed..seed + 1, mistake).1.is_empty());
        assert!(found, "nobody noticed {mistake:?}");
    }
    for mistake in [Mistake::EverythingSettled, Mistake::NoFile(".intent")] {
        let found =
            (1000..1060).any(|seed| !dies_and_power_fails(seed..seed + 1, mistake).1.is_empty());
        assert!(found, "nobody noticed {mistake:?}");
    }
}

/// Power fails while a store is made: it is made the next time.
#[test]
fn a_store_that_was_never_finished_is_finished() {
    for stop in 0.. {
        let disk = SimulatedDisk::new();
        disk.stop_at(stop);
        let made = root::create(&disk);
        for loss in 0..4 {
            let left = disk.lose_power(stop << 8 | loss);
            root::create(&left).unwrap();
            check(&left, &Expected::default(), loss).unwrap();
        }
        if made.is_ok() {
            assert!(stop > 280, "{stop}");
            break;
        }
    }
}
