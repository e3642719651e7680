//! Failing calls: every kind of failure at every call of a random run.

use rustix::io::Errno;

use transload_test_stores::count;

use super::super::disk::simulated::{Random, Trouble};
use super::script::{Expected, chunk, collect, name, new_store, open, step};
use crate::backend::Backend;

const LIVES: u64 = 3;
const STEPS: u32 = 6;

#[test]
fn a_call_that_fails_is_an_error_or_nothing_and_the_store_goes_on() {
    try_all(
        &[
            Trouble::Error(Errno::NOSPC),
            Trouble::Error(Errno::IO),
            Trouble::Error(Errno::DQUOT),
            Trouble::Error(Errno::MFILE),
            Trouble::Short,
        ],
        1,
        1,
        0..count("TRANSLOAD_TEST_LIVES", LIVES),
    );
}

/// A flush that fails on another thread must keep all manifests of its batch from being published.
#[test]
fn a_flush_that_fails_beside_others_is_an_error() {
    let lives = 200..200 + count("TRANSLOAD_TEST_LIVES", LIVES);
    try_all(&[1, 2].map(|n| Trouble::Flushes(n, Errno::IO)), 2, 3, lives);
}

/// This also applies to the flushes that complete earlier failed work.
#[test]
fn a_flush_that_succeeds_after_one_that_failed_is_not_believed() {
    let lives = 100..100 + count("TRANSLOAD_TEST_LIVES", LIVES);
    // Several calls lie between two flushes, so not every one has to be tried.
    try_all(&[1, 2, 3].map(|n| Trouble::Flushes(n, Errno::IO)), 3, 1, lives);
}

/// A collection may remove packs and then fail to announce it. The next save must write their chunks again.
#[test]
fn what_an_untold_collection_removed_is_put_again() {
    let (empty, (hash, data)) = (new_store(), chunk(5));
    let mut collections = 0;
    for at in 0.. {
        let disk = empty.copy();
        disk.trouble(at, Trouble::Error(Errno::NOSPC));
        let store = open(&disk).or_else(|_| open(&disk)).unwrap();
        let mut expected = Expected::default();
        let mut save = || {
            store.put_chunk(&hash, &data)?;
            expected.put(&store, &name(0), 0, &[5])
        };
        let mut failures = u32::from(save().is_err());
        failures += u32::from(store.delete_manifest(&name(0)).is_err());
        let collected = collect(&store).is_err();
        collections += u32::from(collected);
        failures += u32::from(collected);
        let saved = save();
        failures += u32::from(saved.is_err());
        assert!(failures <= 1, "at call {at}: {saved:?}");
        let over = disk.counts().0 <= at;
        if over {
            break;
        }
    }
    assert!(collections > 0);
}

fn try_all(troubles: &[Trouble], every: usize, flushes: usize, lives: std::ops::Range<u64>) {
    let (empty, mut tried) = (new_store(), 0);
    for seed in lives {
        for &trouble in troubles {
            for at in (0..).step_by(every) {
                let disk = empty.copy().with_flushes(flushes);
                disk.trouble(at, trouble);
                let mut expected = Expected::default();
                let mut random = Random(seed);
                let store = match open(&disk) {
                    Ok(store) => store,
                    // Opening succeeds once the cause is gone.
                    Err(_) => open(&disk).unwrap(),
                };
                let mut failed = None;
                for n in 0..STEPS {
                    // A failed step is not acknowledged. The next one must work.
                    if let Err(error) = step(&store, &mut expected, &mut random) {
                        if !matches!(trouble, Trouble::Flushes(2.., _)) {
                            assert!(
                                failed.is_none(),
                                "life {seed}, {trouble:?} at call {at}, step {n}: {failed:?}, then {error}"
                            );
                        }
                        assert_ne!(trouble, Trouble::Short, "{error}");
                        failed = Some(error);
                    }
                }
                let over = disk.counts().0 <= at;
                disk.no_trouble();
                let why = |how| format!("life {seed}, {trouble:?} at call {at}, {failed:?}: {how}");
                expected.check(&store).map_err(why).unwrap();
                // A collection must not remove what a manifest needs that reappears after a loss of power.
                collect(&store).unwrap();
                drop(store);
                // A failed flush must not leave acknowledged values out of the disk either.
                for loss in 0..2 {
                    tried += 1;
                    let store = open(&disk.lose_power(at << 8 | loss)).unwrap();
                    expected.check(&store).map_err(why).unwrap();
                }
                if over {
                    break;
                }
            }
        }
    }
    println!("{tried} failures");
    assert!(tried > 1000, "{tried}");
}
