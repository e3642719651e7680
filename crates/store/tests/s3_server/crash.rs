//! The server stops in the middle of saves and restarts. Each save must fail or be complete.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use transload_store::backend::s3::S3Store;
use transload_store::{Backend, ChunkHash, ManifestName, StoreError};
use transload_test_stores::s3::Server;
use transload_test_stores::{bytes, hash, name};

const KILLS: u64 = 20;

/// Returns the chunks of one save. Some are unique, and some are shared with the saves before and after it.
fn chunks(save: u64) -> Vec<Vec<u8>> {
    let seed = |n| match n {
        0 | 1 => 10 * (save / 4) + n,
        n => 1_000_000 + save * 100 + n,
    };
    (0..6).map(|n| bytes(seed(n), 30_000)).collect()
}

fn manifest(save: u64) -> Vec<u8> {
    let hashes = chunks(save).into_iter().map(|data| hash(&data));
    hashes.flat_map(|hash| hash.as_bytes().to_vec()).collect()
}

fn put(store: &S3Store, save: u64) -> Result<(), StoreError> {
    for data in chunks(save) {
        store.put_chunk(&hash(&data), &data)?;
    }
    store.put_manifest(&name(&save.to_string()), &manifest(save))
}

fn check(store: &S3Store, names: &[ManifestName]) {
    let manifests = store.get_manifests(names).unwrap();
    for (name, got) in names.iter().zip(manifests) {
        let got = got.unwrap_or_else(|| panic!("{name} was listed or acknowledged"));
        assert_eq!(got, manifest(name.as_str().parse().unwrap()), "{name}");
        let hashes: Vec<ChunkHash> = got.chunks(32).map(|hash| ChunkHash::new(hash).unwrap()).collect();
        for (wanted, got) in hashes.iter().zip(store.get_chunks(&hashes).unwrap()) {
            let got = got.unwrap_or_else(|| panic!("{name} needs {wanted}"));
            assert_eq!(hash(&got), *wanted);
        }
    }
}

#[test]
fn ended_at_any_moment() {
    let mut server = Server::s3s();
    // One gives up before the server is back, the other tries for longer than that.
    let stores = [20, 10_000].map(|millis| {
        let mut options = server.options();
        options.retry = Duration::from_millis(millis);
        S3Store::open(&"s3://bucket/kv".parse().unwrap(), options).unwrap()
    });
    let acknowledged = Mutex::new(HashSet::new());
    let (next, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut checked = HashSet::new();
    for kill in 0..KILLS {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for store in &stores {
                let (stop, next, errors, acknowledged) = (&stop, &next, &errors, &acknowledged);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let save = next.fetch_add(1, Ordering::Relaxed);
                        match put(store, save) {
                            Ok(()) => drop(acknowledged.lock().unwrap().insert(save.to_string())),
                            Err(_) => drop(errors.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
            // Long enough for some saves, and never at the same place in one.
            sleep(Duration::from_millis(20 + u64::from(bytes(kill, 1)[0]) % 180));
            server.kill();
            sleep(Duration::from_millis(100));
            server.start();
            stop.store(true, Ordering::Relaxed);
        });
        let fresh = server.open("/kv");
        let mut visible = acknowledged.lock().unwrap().clone();
        let inventory = fresh.inventory().unwrap();
        inventory
            .manifests(&mut |entry| {
                visible.insert(entry.name.to_string());
                Ok(())
            })
            .unwrap();
        // All of them in the last round; what a restart does, it does to the newest.
        if kill + 1 == KILLS {
            checked.clear();
        }
        let names: Vec<_> = visible.difference(&checked).map(|text| name(text)).collect();
        check(&fresh, &names);
        checked.extend(visible);
    }
    let (saves, errors) = (acknowledged.lock().unwrap().len(), errors.load(Ordering::Relaxed));
    println!("{KILLS} ends, {saves} saves acknowledged, {errors} failed, {} seen", checked.len());
    assert!(saves > 0 && errors > 0);
}
