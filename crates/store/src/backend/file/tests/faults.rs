//! Calls that fail: every kind of failure at every call of a life.

use rustix::io::Errno;

use super::super::disk::simulated::{Random, Trouble};
use super::script::{Expected, collect, count, new_store, open, step};

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
        0..count("TRANSLOAD_TEST_LIVES", LIVES),
    );
}

/// Also the flushes of those who finish what failed before.
#[test]
fn a_flush_that_succeeds_after_one_that_failed_is_not_believed() {
    let lives = 100..100 + count("TRANSLOAD_TEST_LIVES", LIVES);
    // There are some calls from one flush to the next.
    try_all(&[1, 2, 3].map(|n| Trouble::Flushes(n, Errno::IO)), 3, lives);
}

fn try_all(troubles: &[Trouble], every: usize, lives: std::ops::Range<u64>) {
    let (empty, mut tried) = (new_store(), 0);
    for seed in lives {
        for &trouble in troubles {
            for at in (0..).step_by(every) {
                let disk = empty.copy();
                disk.trouble(at, trouble);
                let mut expected = Expected::default();
                let mut random = Random(seed);
                let store = match open(&disk) {
                    Ok(store) => store,
                    // Once the cause is gone, it can be opened.
                    Err(_) => open(&disk).unwrap(),
                };
                let mut failed = None;
                for n in 0..STEPS {
                    // What fails is not acknowledged; what comes after it works.
                    if let Err(error) = step(&store, &mut expected, &mut random) {
                        if !matches!(trouble, Trouble::Flushes(2.., _)) {
                            assert!(failed.is_none(), "{n}: {failed:?}, then {error}");
                        }
                        assert_ne!(trouble, Trouble::Short, "{error}");
                        failed = Some(error);
                    }
                }
                let over = disk.counts().0 <= at;
                disk.no_trouble();
                let why = |how| format!("life {seed}, {trouble:?} at call {at}, {failed:?}: {how}");
                expected.check(&store).map_err(why).unwrap();
                // What goes now may be needed by what comes back.
                collect(&store).unwrap();
                drop(store);
                // Neither did a flush that failed keep anything that was acknowledged from the disk.
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
