//! Objects in a folder whose power fails, at every call that changes the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use transload_archive::objects::{ObjectError, Objects, Source, Target};
use transload_store::Backend;
use transload_store::backend::CollectOptions;
use transload_store::internal::simulated::{Mistake, Random, SimulatedDisk};
use transload_test_stores::{assert_right, count};

const LIVES: u64 = 6;
const STEPS: u32 = 5;
const LOSSES: u64 = 2;

/// For each key, the lengths that its object may have; `None` for no object.
type Expected = BTreeMap<u8, Vec<Option<usize>>>;

/// Returns the bytes of an object. Some objects share theirs.
fn value(key: u8, len: usize) -> Vec<u8> {
    vec![key % 3; len]
}

fn objects(disk: &SimulatedDisk) -> Result<Objects, ObjectError> {
    Ok(Objects::new(Arc::new(disk.open_store()?), b"ns")?.with_threads(1))
}

/// Puts, replaces, removes and collects at random. Ends at the first error.
fn live(disk: &SimulatedDisk, expected: &mut Expected, random: &mut Random, steps: u32) -> Result<(), ObjectError> {
    let objects = objects(disk)?;
    for _ in 0..steps {
        match random.below(6) {
            0 => {
                let key = random.below(5) as u8;
                expected.entry(key).or_insert_with(|| vec![None]).push(None);
                objects.delete(&[&[key]])?;
                expected.insert(key, vec![None]);
            }
            1 => {
                let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
                let store = disk.open_store()?;
                store.inventory().unwrap().collect(&now, &mut |_| ())?;
            }
            _ => put_some(&objects, expected, random)?,
        }
    }
    Ok(())
}

fn put_some(objects: &Objects, expected: &mut Expected, random: &mut Random) -> Result<(), ObjectError> {
    let lengths: BTreeMap<u8, usize> =
        (0..1 + random.below(3)).map(|_| (random.below(5) as u8, random.below(3) as usize * 700)).collect();
    for (key, len) in &lengths {
        let values = expected.entry(*key).or_insert_with(|| vec![None]);
        values.push(Some(*len));
    }
    let values: Vec<_> = lengths.iter().map(|(&key, &len)| ([key], value(key, len))).collect();
    let parts: Vec<_> = values.iter().map(|(_, bytes)| [bytes.into()]).collect();
    let sources = values.iter().zip(&parts).map(|((key, _), parts)| Source { key, meta: b"", parts });
    objects.put(&sources.collect::<Vec<_>>())?;
    expected.extend(lengths.into_iter().map(|(key, len)| (key, vec![Some(len)])));
    Ok(())
}

fn check(disk: &SimulatedDisk, expected: &Expected) -> Result<(), String> {
    let objects = objects(disk).map_err(|error| format!("cannot be opened: {error}"))?;
    for (key, values) in expected {
        let found = objects.has(&[&[*key]]).map_err(|error| error.to_string())?;
        let len = found[0].as_ref().map(|info| info.bytes as usize);
        if !values.contains(&len) {
            return Err(format!("{key} is {len:?}, not one of {values:?}"));
        }
        let Some(len) = len else { continue };
        let mut bytes = vec![9; len];
        let mut parts = [(&mut bytes).into()];
        let target = Target { key: &[*key], parts: &mut parts };
        let read = objects.get(&mut [target]).map_err(|error| error.to_string())?;
        if read[0].is_none() || bytes != value(*key, len) {
            return Err(format!("{key} of {len} bytes cannot be read"));
        }
    }
    Ok(())
}

/// Stops the process at each change and loses power. Returns the number of cases and the failures.
fn power_fails(lives: std::ops::Range<u64>, mistake: Mistake) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (SimulatedDisk::with_store(), 0, Vec::new());
    for seed in lives {
        for stop in 0.. {
            let disk = empty.copy().with_mistake(mistake);
            disk.stop_at(stop);
            let mut expected = Expected::default();
            let lived = live(&disk, &mut expected, &mut Random(seed), STEPS);
            assert!(lived.is_ok() || disk.is_stopped(), "{lived:?}");
            for loss in 0..LOSSES {
                points += 1;
                let left = disk.lose_power(seed << 32 | stop << 8 | loss);
                let left = left.with_mistake(Mistake::None);
                // It is a store, and what is put then survives too.
                let checked = check(&left, &expected).and_then(|()| {
                    let mut expected = expected.clone();
                    let more = live(&left, &mut expected, &mut Random(seed + 1), 2);
                    more.map_err(|error| format!("does not work any more: {error}"))?;
                    check(&left.lose_power(0), &expected)
                });
                if let Err(how) = checked {
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

#[test]
fn what_was_put_survives_a_loss_of_power_at_any_change() {
    assert_right(power_fails(0..count("TRANSLOAD_TEST_LIVES", LIVES), Mistake::None), 500);
}

/// The test above must detect these mistakes.
#[test]
fn a_store_that_does_not_flush_is_found() {
    for mistake in [Mistake::NoFileFlush(".pack"), Mistake::NoFolderFlush("manifests/")] {
        let found = (0..8).any(|seed| !power_fails(seed..seed + 1, mistake).1.is_empty());
        assert!(found, "nobody noticed {mistake:?}");
    }
}
