//! The server is killed in the middle of saves and started again: an error or a complete save.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use transload_store::backend::Inventory;
use transload_store::{Backend, ChunkHash, ManifestName, StoreError};
use transload_test_stores::{bytes, hash, name, server};

/// The number of times that the server is killed. Each takes a few tenths of a second.
const KILLS: u64 = 40;

/// Returns the chunks of one save, some of which other saves share.
fn chunks(save: u64) -> Vec<Vec<u8>> {
    (0..8)
        .map(|n| match n {
            0..3 => bytes(save / 4 * 1000 + n, 40_000),
            _ => bytes(1_000_000 + save * 100 + n, 5_000 + 50_000 * (n as usize % 3)),
        })
        .collect()
}

fn manifest(save: u64) -> Vec<u8> {
    chunks(save).iter().flat_map(|data| hash(data).as_bytes().to_vec()).collect()
}

#[derive(Default)]
struct Puts {
    done: Option<u64>,
    /// The failed puts since then. Each may have taken effect.
    failed: Vec<u64>,
}

#[test]
fn killed_at_any_moment() {
    let mut server = server!("--appendonly", "yes", "--appendfsync", "always");
    let acknowledged = Mutex::new(HashMap::new());
    let (next, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut store = server.open("");
    for kill in 0..KILLS {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let save = next.fetch_add(1, Ordering::Relaxed);
                        // Names come again, so manifests are replaced too.
                        let manifest_name = name(&format!("m{}", save % 50));
                        let put = chunks(save).iter().try_for_each(|data| store.put_chunk(&hash(data), data).map(drop));
                        // One writer for a name at a time, so that it is known which comes last.
                        let mut acknowledged = acknowledged.lock().unwrap();
                        let done = put.and_then(|()| store.put_manifest(&manifest_name, &manifest(save)));
                        let name: &mut Puts = acknowledged.entry(manifest_name).or_default();
                        match done {
                            Ok(()) => *name = Puts { done: Some(save), failed: Vec::new() },
                            Err(_) => {
                                name.failed.push(save);
                                errors.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
            // At no particular moment: what a save does takes fractions of a millisecond, and all of it, on a
            // server that flushes each of its steps, some tens.
            let nanos = u64::from_le_bytes(bytes(kill, 8).try_into().unwrap()) % 200_000_000;
            std::thread::sleep(Duration::from_nanos(nanos));
            server.kill();
            std::thread::sleep(Duration::from_millis(10));
            stop.store(true, Ordering::Relaxed);
        });
        server.restart();
        check(&server.open(""), &acknowledged.lock().unwrap());
        // Continue with the handle that lost its server, or with a new one.
        if kill % 2 == 0 {
            store = server.open("");
        }
    }
    let (begun, failed) = (next.into_inner(), errors.into_inner());
    let saves = begun - failed;
    println!("{KILLS} kills, {begun} saves begun, {failed} failed, {saves} acknowledged");
    assert!(saves > 0 && failed >= KILLS / 2);
}

/// Checks that acknowledged values exist, and that all existing values are intact.
fn check(store: &(impl Backend + Inventory), acknowledged: &HashMap<ManifestName, Puts>) {
    for (name, puts) in acknowledged {
        let Some(found) = store.get_manifest(name).unwrap() else {
            assert_eq!(puts.done, None, "{name} was acknowledged");
            continue;
        };
        let mut possible = puts.done.iter().chain(&puts.failed);
        assert!(
            possible.any(|&save| found == manifest(save)),
            "{name} is neither the last that was acknowledged nor one that was tried since"
        );
    }
    let mut visible = Vec::new();
    store
        .manifests(&mut |entry| {
            visible.push(entry.name);
            Ok(())
        })
        .unwrap();
    for name in visible {
        let manifest = store.get_manifest(&name).unwrap().unwrap();
        let hashes: Vec<ChunkHash> = manifest.chunks(32).map(|hash| ChunkHash::new(hash).unwrap()).collect();
        for (wanted, got) in hashes.iter().zip(store.get_chunks(&hashes).unwrap()) {
            let got = got.unwrap_or_else(|| panic!("{name} needs {wanted}"));
            assert_eq!(hash(&got), *wanted);
        }
    }
}

#[test]
fn a_handle_outlives_a_restart() {
    let mut server = server!("--appendonly", "yes", "--appendfsync", "always");
    let store = server.open("");
    let data = bytes(1, 100_000);
    store.put_chunk(&hash(&data), &data).unwrap();
    store.put_manifest(&name("m"), b"1").unwrap();
    for _ in 0..3 {
        server.restart();
        assert_eq!(store.get_chunk(&hash(&data)).unwrap().unwrap(), data);
        server.restart();
        store.put_manifest(&name("m"), b"2").unwrap();
    }
}

#[test]
fn what_waits_for_a_server_is_sent_when_it_is_back() {
    let mut server = server!("--appendonly", "yes", "--appendfsync", "always");
    let store = server.open("");
    let data: Vec<_> = (0..20).map(|n| bytes(n, 100_000)).collect();
    for data in &data {
        store.put_chunk(&hash(data), data).unwrap();
    }
    server.kill();
    assert!(store.put_manifest(&name("m"), b"1").is_err());
    server.restart();
    store.put_manifest(&name("m"), b"1").unwrap();
    let other = server.open("");
    for data in &data {
        assert_eq!(other.get_chunk(&hash(data)).unwrap().unwrap(), data);
    }
}

#[test]
fn a_server_that_forgot_everything_gets_no_manifest_without_chunks() {
    let mut server = server!();
    let store = server.open("");
    let data: Vec<_> = (0..20).map(|n| bytes(n, 100_000)).collect();
    for data in &data {
        store.put_chunk(&hash(data), data).unwrap();
    }
    // All of them acknowledged, then lost.
    while store.get_chunks(&[hash(&data[19])]).unwrap()[0].is_none()
        || server.open("").get_chunk(&hash(&data[19])).unwrap().is_none()
    {
        std::thread::yield_now();
    }
    server.restart();
    let error = store.put_manifest(&name("m"), b"1").unwrap_err();
    assert!(matches!(error, StoreError::Collected { .. }), "{error}");
    assert_eq!(store.get_manifest(&name("m")).unwrap(), None);
    for data in &data {
        store.put_chunk(&hash(data), data).unwrap();
    }
    store.put_manifest(&name("m"), b"1").unwrap();
}
