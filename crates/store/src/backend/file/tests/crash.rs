//! Crashes of processes and losses of power, at every call that changes the disk.

use rustix::io::Errno;

use transload_test_stores::{assert_right, count};

use super::super::disk::simulated::{Mistake, Random, SimulatedDisk, Trouble};
use super::super::{FileStore, root};
use super::script::{CAP, Expected, chunk, collect, live, live_capped, name, new_store, open, open_capped};
use crate::backend::Backend;
use crate::error::StoreError;

/// The number of random runs and of steps in each. Every run is stopped at every change that it makes.
const LIVES: u64 = 8;
const STEPS: u32 = 6;
/// The number of random losses of power at each stop. Each keeps other unflushed changes.
const LOSSES: u64 = 2;

/// With a cap, runs have to be longer before anything is evicted.
const CAPPED_LIVES: u64 = 4;
const CAPPED_STEPS: u32 = 12;

/// Stops runs at every change and loses power. Returns the number of stops and losses tried, and the failures.
fn power_fails(lives: std::ops::Range<u64>, mistake: Mistake) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (new_store(), 0, Vec::new());
    for seed in lives {
        for stop in 0.. {
            let disk = empty.copy().with_mistake(mistake);
            disk.stop_at(stop);
            let mut expected = Expected::default();
            let lived = open(&disk).and_then(|store| live(&store, &mut expected, &mut Random(seed), STEPS));
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

/// Stops a process at every change, continues with another one, and then loses power. Nothing that the first left
/// unflushed may become something that the second relies on.
fn dies_and_power_fails(lives: std::ops::Range<u64>, mistake: Mistake) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (new_store(), 0, Vec::new());
    for seed in lives {
        for stop in 0.. {
            let disk = empty.copy().with_mistake(mistake);
            disk.stop_at(stop);
            let mut expected = Expected::default();
            let _ = open(&disk).and_then(|store| live(&store, &mut expected, &mut Random(seed), STEPS));
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

fn check(disk: &SimulatedDisk, expected: &Expected, seed: u64) -> Result<(), String> {
    let store = open(disk).map_err(|error| format!("cannot be opened: {error}"))?;
    expected.check(&store)?;
    let mut expected = expected.clone();
    live(&store, &mut expected, &mut Random(seed + 1), 2)
        .map_err(|error| format!("does not work any more: {error}"))?;
    drop(store);
    let store = open(&disk.lose_power(0)).map_err(|error| error.to_string())?;
    expected.check(&store).map_err(|how| format!("the next save: {how}"))
}

/// Does the same as [`power_fails`] and [`dies_and_power_fails`] with a cap. Also returns the number of evictions.
fn power_fails_under_a_cap(lives: std::ops::Range<u64>, mistake: Mistake) -> (u64, Vec<String>, u64) {
    let (empty, mut points, mut wrong, mut evictions) = (new_store(), 0, Vec::new(), 0);
    for seed in lives {
        for stop in 0.. {
            let mut disk = empty.copy().with_mistake(mistake);
            disk.stop_at(stop);
            let mut expected = Expected::default();
            let lived = open_capped(&disk)
                .and_then(|store| live_capped(&store, &mut expected, &mut Random(seed), CAPPED_STEPS));
            assert!(lived.is_ok() || disk.is_stopped(), "{lived:?}");
            let done = !disk.is_stopped();
            let mut why = |how: String| wrong.push(format!("life {seed}, change {stop}: {how}"));
            if disk.most_bytes() > CAP {
                why(format!("{} bytes", disk.most_bytes()));
            }
            if stop % 3 == 0 {
                // Another process continues.
                disk = disk.copy();
                let lived = open_capped(&disk)
                    .and_then(|store| live_capped(&store, &mut expected, &mut Random(seed + stop), 2));
                if let Err(error) = lived {
                    why(error.to_string());
                }
                if disk.most_bytes() > CAP {
                    why(format!("{} bytes", disk.most_bytes()));
                }
            }
            evictions += u64::from(expected.evicted(&disk));
            for loss in 0..LOSSES {
                points += 1;
                let left = disk.lose_power(seed << 32 | stop << 8 | loss);
                if let Err(how) = check_capped(&left.with_mistake(Mistake::None), &expected) {
                    why(format!("loss {loss}: {how}"));
                }
            }
            if done {
                break;
            }
        }
    }
    (points, wrong, evictions)
}

/// Does the same as [`check`]. After a loss of power, values removed just before may exist again, so the store may
/// exceed its cap. It must evict them before it takes anything new.
fn check_capped(disk: &SimulatedDisk, expected: &Expected) -> Result<(), String> {
    let most = CAP.max(disk.most_bytes());
    let store = open_capped(disk).map_err(|error| format!("cannot be opened: {error}"))?;
    expected.check(&store)?;
    let (hash, data) = chunk(65);
    let saved = store.put_chunk(&hash, &data).and_then(|_| store.put_manifest(&name(65), hash.as_bytes()));
    saved.map_err(|error| format!("does not work any more: {error}"))?;
    drop(store);
    if disk.most_bytes() > most {
        return Err("it grew over its cap".to_owned());
    }
    let disk = disk.lose_power(0);
    let store = open_capped(&disk).map_err(|error| error.to_string())?;
    let there = store.get_manifest(&name(65)).map_err(|error| error.to_string())?;
    let bytes = store.get_chunk(&hash).map_err(|error| error.to_string())?;
    match there.as_deref() == Some(hash.as_bytes()) && bytes.as_deref() == Some(&data[..]) {
        true => Ok(()),
        false => Err("the next save is gone".to_owned()),
    }
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power_at_any_change() {
    let lives = 0..count("TRANSLOAD_TEST_LIVES", LIVES);
    assert_right(power_fails(lives, Mistake::None), 1000);
}

#[test]
fn nobody_relies_on_what_a_dead_process_did_not_flush() {
    let lives = 1000..1000 + count("TRANSLOAD_TEST_LIVES", LIVES);
    assert_right(dies_and_power_fails(lives, Mistake::None), 1000);
}

#[test]
fn a_store_with_a_cap_survives_a_loss_of_power_at_any_change() {
    let lives = 2000..2000 + count("TRANSLOAD_TEST_LIVES", CAPPED_LIVES);
    let (points, wrong, evictions) = power_fails_under_a_cap(lives, Mistake::None);
    println!("{evictions} evictions");
    assert!(evictions > points / 10, "{evictions} of {points}");
    assert_right((points, wrong), 1000);
}

/// The test above must detect packs that are removed before the removal of their manifests is durable.
#[test]
fn unsafe_ways_to_evict_are_found() {
    for mistake in [Mistake::NoRemovalFlush, Mistake::NoFolderFlush("packs/"), Mistake::NoFileFlush(".pack")] {
        let found = (2000..2020).any(|seed| !power_fails_under_a_cap(seed..seed + 1, mistake).1.is_empty());
        assert!(found, "nobody noticed {mistake:?}");
    }
}

/// The tests above must detect each of these mistakes.
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
        let found = (1000..1060).any(|seed| !dies_and_power_fails(seed..seed + 1, mistake).1.is_empty());
        assert!(found, "nobody noticed {mistake:?}");
    }
}

/// Power fails while a store is created. The next attempt completes it.
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

/// Flushes fail while a store is created. The next attempt makes it durable.
#[test]
fn a_store_that_could_not_be_flushed_is_made_anew() {
    for at in 0.. {
        let disk = SimulatedDisk::new();
        disk.trouble(at, Trouble::Flushes(1, Errno::IO));
        let made = root::create(&disk);
        disk.no_trouble();
        let Err(StoreError::Io { .. }) = made else {
            made.unwrap();
            assert!(at > 280, "{at}");
            break;
        };
        for seed in 0..4 {
            let disk = disk.copy();
            root::create(&disk).unwrap();
            let store = open(&disk).unwrap();
            let (hash, data) = chunk(5);
            store.put_chunk(&hash, &data).unwrap();
            store.put_manifest(&name(5), &[]).unwrap();
            drop(store);
            let store: FileStore = open(&disk.lose_power(seed)).unwrap();
            assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data, "{at}");
            assert!(store.get_manifest(&name(5)).unwrap().is_some(), "{at}");
        }
    }
}
