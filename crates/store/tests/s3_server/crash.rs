//! The server ends in the middle of saves and comes back: an error or a complete save.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use transload_store::{Backend, ChunkHash};

use crate::server::{Server, bytes, hash, name};

const KILLS: u64 = 15;

fn chunks(save: u64) -> Vec<Vec<u8>> {
    (0..6)
        .map(|n| {
            bytes(
                if n < 2 {
                    save / 4
                } else {
                    1_000_000 + save * 100 + n
                },
                30_000,
            )
        })
        .collect()
}

fn manifest(save: u64) -> Vec<u8> {
    chunks(save)
        .iter()
        .flat_map(|data| hash(data).as_bytes().to_vec())
        .collect()
}

#[test]
fn ended_at_any_moment() {
    let mut server = Server::s3s();
    let store = server.open("/kv");
    let acknowledged = Mutex::new(HashMap::new());
    let (next, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    for kill in 0..KILLS {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let save = next.fetch_add(1, Ordering::Relaxed);
                        let put = chunks(save)
                            .iter()
                            .try_for_each(|data| store.put_chunk(&hash(data), data).map(drop))
                            .and_then(|()| {
                                store.put_manifest(&name(&save.to_string()), &manifest(save))
                            });
                        match put {
                            Ok(()) => drop(acknowledged.lock().unwrap().insert(save, ())),
                            Err(_) => drop(errors.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
            let millis = u64::from(bytes(kill, 1)[0]) % 150;
            std::thread::sleep(Duration::from_millis(millis));
            server.kill();
            stop.store(true, Ordering::Relaxed);
        });
        server.start();
        let fresh = server.open("/kv");
        for save in acknowledged.lock().unwrap().keys() {
            let found = fresh.get_manifest(&name(&save.to_string())).unwrap();
            assert_eq!(found.unwrap(), manifest(*save));
        }
        let mut visible = Vec::new();
        fresh
            .inventory()
            .unwrap()
            .manifests(&mut |entry| {
                visible.push(entry.name);
                Ok(())
            })
            .unwrap();
        for name in visible {
            let manifest = fresh.get_manifest(&name).unwrap().unwrap();
            let hashes: Vec<ChunkHash> = manifest
                .chunks(32)
                .map(|hash| ChunkHash::new(hash).unwrap())
                .collect();
            for (wanted, got) in hashes.iter().zip(fresh.get_chunks(&hashes).unwrap()) {
                assert_eq!(
                    hash(&got.unwrap_or_else(|| panic!("{name} needs {wanted}"))),
                    *wanted
                );
            }
        }
    }
    let (saves, errors) = (
        acknowledged.lock().unwrap().len(),
        errors.load(Ordering::Relaxed),
    );
    println!("{KILLS} ends, {saves} saves acknowledged, {errors} failed");
    assert!(saves > 0 && errors > 0);
}
