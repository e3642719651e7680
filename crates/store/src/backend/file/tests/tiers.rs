//! Tiers on simulated disks. One of the disks stops at every change and loses its unflushed data.

use std::sync::Arc;

use transload_test_stores::assert_right;

use super::super::disk::simulated::{Random, SimulatedDisk};
use super::script::{Expected, live, new_store, open};
use crate::backend::tier::Write;
use crate::backend::{Backend, Tier, TierStore};
use crate::error::StoreError;

const LIVES: u64 = 3;
const STEPS: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    Above,
    Below,
}

fn tiers(disks: &[SimulatedDisk; 2], write: Write) -> Result<TierStore, StoreError> {
    let tier = |disk| Ok::<_, StoreError>(Tier::new("disk", Arc::new(open(disk)?)));
    TierStore::new(vec![tier(&disks[0])?, tier(&disks[1])?], write)
}

/// Runs until a disk stops, and checks both after a loss of power. Returns the number of stops, and the failures.
fn lives(
    write: Write,
    dies: Dies,
    check: impl Fn(&Expected, &[SimulatedDisk; 2]) -> Result<(), String>,
) -> (u64, Vec<String>) {
    let (empty, mut points, mut wrong) = (new_store(), 0, Vec::new());
    for seed in 0..LIVES {
        for stop in 0.. {
            let disks = [empty.copy(), empty.copy()];
            let dying = &disks[usize::from(dies == Dies::Below)];
            dying.stop_at(stop);
            let mut expected = Expected::default();
            let lived = tiers(&disks, write).and_then(|store| {
                let lived = live(&store, &mut expected, &mut Random(seed), STEPS);
                if write == Write::Back && lived.is_err() {
                    // The process ends here, so it makes no more copies.
                    disks.iter().for_each(|disk| disk.stop_at(0));
                }
                lived
            });
            let over = !dying.is_stopped();
            assert!(lived.is_ok() || !over, "{lived:?}");
            points += 1;
            let left = [0, 1].map(|at| disks[at].lose_power(seed << 32 | stop << 8 | at as u64));
            if let Err(how) = check(&expected, &left) {
                wrong.push(format!("life {seed}, change {stop}: {how}"));
            }
            if over {
                break;
            }
        }
    }
    (points, wrong)
}

fn alone(expected: &Expected, disk: &SimulatedDisk) -> Result<(), String> {
    let store = open(disk).map_err(|error| error.to_string())?;
    expected.check(&store)
}

#[test]
fn what_was_acknowledged_survives_the_loss_of_the_tier_above() {
    let whole = |expected: &Expected, left: &[SimulatedDisk; 2]| {
        alone(expected, &left[1])?;
        let store = tiers(left, Write::Through).map_err(|error| error.to_string())?;
        expected.check(&store)
    };
    assert_right(lives(Write::Through, Dies::Below, whole), 50);
}

#[test]
fn a_disk_above_that_dies_ends_nothing() {
    let below = |expected: &Expected, left: &[SimulatedDisk; 2]| alone(expected, &left[1]);
    assert_right(lives(Write::Through, Dies::Above, below), 50);
}

#[test]
fn what_is_copied_later_is_durable_before() {
    // The manifest is in the tier above while it is pending, and below afterwards.
    let both = |expected: &Expected, left: &[SimulatedDisk; 2]| {
        let store = tiers(left, Write::Back).map_err(|error| error.to_string())?;
        expected.check(&store)
    };
    assert_right(lives(Write::Back, Dies::Above, both), 50);
    assert_right(lives(Write::Back, Dies::Below, both), 20);
}

/// Whenever the copies end, the tier below is intact.
#[test]
fn copies_end_between_manifests() {
    let whole = |_: &Expected, left: &[SimulatedDisk; 2]| {
        let store = open(&left[1]).map_err(|error| error.to_string())?;
        let mut faults = Vec::new();
        let inventory = store.inventory().expect("it has one");
        let verified = inventory.verify(&mut |_| (), &mut |fault| faults.push(fault));
        verified.map_err(|error| error.to_string())?;
        match faults.first() {
            None => Ok(()),
            Some(fault) => Err(format!("{fault:?}")),
        }
    };
    assert_right(lives(Write::Back, Dies::Below, whole), 20);
}
