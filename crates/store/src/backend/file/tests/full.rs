//! A process died while it changed a manifest, and the disk is full: tests of what a collection can free, and of
//! manifests that are moved away and back.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::super::FileStore;
use super::super::disk::simulated::{SimulatedDisk, Trouble};
use super::super::locks::{Held, Locks};
use super::script::{Expected, chunk, collect, collect_with, name, new_store, open};
use crate::backend::{Backend, CollectOptions};
use crate::error::StoreError;

#[derive(Clone, Copy, Debug)]
enum Last {
    Put,
    PutNew,
    Delete,
    Evict,
}

const LASTS: [Last; 4] = [Last::Put, Last::PutNew, Last::Delete, Last::Evict];

/// Returns the disk after a death at each change of `last`. One pack on it is not needed by any manifest.
fn deaths(last: Last) -> Vec<(SimulatedDisk, Expected)> {
    let (base, mut before) = (new_store(), Expected::default());
    let store = open(&base).unwrap();
    for n in [0, 1, 2] {
        let chunks = [6 * n as u32 + 4, 6 * n as u32 + 5];
        save(&store, &mut before, n, n, &chunks).unwrap();
    }
    before.delete(&store, &name(1)).unwrap();
    drop(store);
    let mut left = Vec::new();
    for stop in 0.. {
        let (disk, mut expected) = (base.copy(), before.clone());
        let store = open(&disk).unwrap();
        disk.stop_at(disk.counts().1 + stop);
        let died = match last {
            Last::Put => save(&store, &mut expected, 0, 100, &[1, 2]),
            Last::PutNew => save(&store, &mut expected, 7, 100, &[1, 2]),
            Last::Delete => expected.delete(&store, &name(0)),
            Last::Evict => {
                expected.may_go();
                collect_with(&store, CollectOptions { cap: Some(0), ..CollectOptions::default() }).map(drop)
            }
        };
        left.push((disk.copy(), expected));
        if !disk.is_stopped() {
            died.unwrap();
            break;
        }
    }
    left
}

fn save(store: &FileStore, expected: &mut Expected, n: u64, version: u64, chunks: &[u32]) -> Result<(), StoreError> {
    for &n in chunks {
        let (hash, data) = chunk(n);
        store.put_chunk(&hash, &data)?;
    }
    expected.put(store, &name(n), version, chunks)
}

/// Holds the lock of a publisher. While it is held, no other process completes unfinished work.
fn publishes(disk: &SimulatedDisk) -> Held {
    let locks = Locks::new(Arc::new(disk.clone()), Duration::from_secs(60));
    locks.publishing().unwrap()
}

fn count(disk: &SimulatedDisk, which: impl Fn(&str) -> bool) -> usize {
    let files = disk.files();
    files.iter().filter(|(path, _)| which(path)).count()
}

fn is_away(path: &str) -> bool {
    path.ends_with(".away")
}

fn is_tidy(disk: &SimulatedDisk) -> bool {
    count(disk, |path| is_away(path) || path.starts_with("tmp/")) == 0
}

fn bytes(disk: &SimulatedDisk) -> usize {
    disk.files().iter().map(|(_, content)| content.len()).sum()
}

/// No file can be created or extended. A collection frees what it can.
#[test]
fn a_full_disk_on_which_somebody_died_is_collected() {
    let mut intents = 0;
    for (last, errno) in LASTS.into_iter().zip([Errno::NOSPC, Errno::DQUOT].into_iter().cycle()) {
        for (at, (disk, expected)) in deaths(last).into_iter().enumerate() {
            let why = |how| format!("{last:?}, dead at change {at}: {how}");
            intents += count(&disk, |path| path.ends_with(".intent"));
            disk.fill(errno);
            let store = open(&disk).unwrap();
            expected.check(&store).map_err(why).unwrap();
            let before = bytes(&disk);
            let collected = collect(&store).map_err(|error| why(error.to_string()));
            let freed = collected.unwrap().bytes;
            assert!(freed > 0 || matches!(last, Last::Evict), "{}", why(String::new()));
            assert_eq!(bytes(&disk), before - freed as usize, "{last:?}, {at}");
            assert!(is_tidy(&disk), "{last:?}, {at}: {:?}", disk.files());
            expected.check(&store).map_err(why).unwrap();
            for seed in 0..4 {
                let store = open(&disk.lose_power(seed)).unwrap();
                expected.check(&store).map_err(why).unwrap();
            }
        }
    }
    assert!(intents > 10, "{intents}");
}

/// The process that completes the work dies too, at each change. Processes that cannot complete it must still read
/// everything.
#[test]
fn who_finishes_it_on_a_full_disk_may_die_too() {
    let (mut away, mut points) = (0, 0);
    for last in LASTS {
        for (at, (dead, expected)) in deaths(last).into_iter().enumerate() {
            for stop in 0.. {
                let why = |how| format!("{last:?}, dead at {at}, then at {stop}: {how}");
                let disk = dead.copy();
                disk.fill(Errno::NOSPC);
                disk.stop_at(stop);
                let done = open(&disk).and_then(|store| collect(&store));
                if !disk.is_stopped() {
                    done.unwrap();
                    break;
                }
                points += 1;
                let left = disk.copy();
                away += usize::from(count(&left, is_away) > 0);
                for protected in [false, true] {
                    let disk = left.copy();
                    let _held = publishes(&disk);
                    if protected {
                        disk.write_protect(Errno::ROFS);
                    }
                    let store = open(&disk).unwrap();
                    assert_eq!(disk.files(), left.files());
                    expected.check(&store).map_err(why).unwrap();
                }
                for seed in 0..3 {
                    let disk = left.lose_power((at as u64) << 16 | stop << 8 | seed);
                    let store = open(&disk).unwrap();
                    expected.check(&store).map_err(why).unwrap();
                    collect(&store).unwrap();
                    expected.check(&store).map_err(why).unwrap();
                    assert!(is_tidy(&disk), "{}", why(String::new()));
                }
                left.fill(Errno::NOSPC);
                let store = open(&left).unwrap();
                collect(&store).unwrap();
                assert!(is_tidy(&left), "{}", why(String::new()));
                expected.check(&store).map_err(why).unwrap();
                for seed in 0..3 {
                    let store = open(&left.lose_power(seed)).unwrap();
                    expected.check(&store).map_err(why).unwrap();
                }
            }
        }
    }
    println!("{points} deaths, with a manifest away at {away}");
    assert!(points > 200 && away > 10, "{points}, {away}");
}

/// Another process continues after the one that completed the work died or failed to flush. A manifest that it replaces
/// or deletes must not reappear, from either path.
#[test]
fn what_was_away_is_replaced_and_deleted_like_any_other() {
    let mut points = 0;
    for (at, (dead, before)) in deaths(Last::Put).into_iter().enumerate() {
        for (kill, seed) in [(true, 0), (true, 1), (false, 2), (false, 3)] {
            // Several calls lie between two flushes, so not every one has to be tried.
            for trouble in (0..).step_by(if kill { 1 } else { 3 }) {
                let why = |how| format!("dead at {at}, trouble {trouble}, seed {seed}: {how}");
                let (disk, mut expected) = (dead.copy(), before.clone());
                let held = publishes(&disk);
                let store = open(&disk).unwrap();
                drop(held);
                let (calls, changes) = disk.counts();
                match kill {
                    true => disk.stop_at(changes + trouble),
                    false => disk.trouble(calls + trouble, Trouble::Flushes(1, Errno::IO)),
                }
                let finished = store.tidy();
                let over = match kill {
                    true => !disk.is_stopped(),
                    false => disk.counts().0 <= calls + trouble,
                };
                assert!(!over || finished.is_ok());
                disk.go_on();
                points += 1;
                if seed % 2 == 0 {
                    save(&store, &mut expected, 0, 200, &[3]).unwrap();
                }
                // The manifest must not reappear whether or not this deletion is stopped or flushed.
                let changes = disk.counts().1;
                disk.stop_at(changes + 1 + trouble % 7);
                let _ = expected.delete(&store, &name(0));
                for loss in 0..3 {
                    let store = open(&disk.lose_power(seed << 8 | loss)).unwrap();
                    expected.check(&store).map_err(why).unwrap();
                }
                if over {
                    break;
                }
            }
        }
    }
    println!("{points} troubles");
    assert!(points > 200, "{points}");
}
