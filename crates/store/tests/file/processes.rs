//! Eight processes of four threads each that save, read, delete and collect in one store.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use transload_store::StoreError;
use transload_store::backend::{Backend, CollectOptions};

use crate::saving::{Random, again, called, chunk, count, manifest, name, open, verify, wrong_chunk};

const PROCESSES: u64 = 8;
const THREADS: u64 = 4;
const NAMES: u64 = 6;
const CHUNKS: u64 = 30;

/// Collections have no grace here. So a save may have to start again, and a reader may find that the manifest was
/// replaced. A manifest that is still the same must have all its chunks.
#[test]
fn readers_see_old_or_new_and_never_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    drop(open(&root));
    let children: Vec<_> = (0..PROCESSES)
        .map(|n| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            again(&mut command, "processes::other_process", &root, &n.to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let line = text.lines().find(|line| line.contains(" saved, ")).unwrap();
        println!("{line}");
        assert!(!line.starts_with("0 saved") && !line.contains(" 0 read"), "{line}");
    }
    let store = open(&root);
    verify(&store);
    for n in 0..NAMES {
        if let Some(manifest) = store.get_manifest(&name(&n.to_string())).unwrap() {
            assert_eq!(wrong_chunk(&store, &manifest).unwrap(), None, "{n}");
        }
    }
}

#[test]
#[ignore = "a process of the test above"]
fn other_process() {
    let Some((root, role)) = called() else { return };
    let seed: u64 = role.parse().unwrap();
    let end = Instant::now() + Duration::from_secs(count("TRANSLOAD_TEST_SECONDS", 4));
    let (saved, read, again) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    // Half of the processes have one handle for all threads, and half have one for each.
    let shared = seed.is_multiple_of(2).then(|| open(Path::new(&root)));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, root, saved, read, again) = (&shared, &root, &saved, &read, &again);
            scope.spawn(move || {
                let own = shared.is_none().then(|| open(Path::new(root)));
                let store = shared.as_ref().or(own.as_ref()).unwrap();
                let mut random = Random(seed << 32 | thread);
                while Instant::now() < end {
                    let which = name(&random.below(NAMES).to_string());
                    match random.below(20) {
                        0 => {
                            let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
                            let inventory = store.inventory().unwrap();
                            inventory.collect(&now, &mut |_| ()).unwrap();
                        }
                        1 => store.delete_manifest(&which).unwrap(),
                        2..8 => {
                            let version = random.below(u64::MAX);
                            let chunks: Vec<u64> = (0..random.below(5)).map(|_| random.below(CHUNKS)).collect();
                            loop {
                                for &n in &chunks {
                                    let (hash, data) = chunk(n);
                                    store.put_chunk(&hash, &data).unwrap();
                                }
                                match store.put_manifest(&which, &manifest(version, &chunks)) {
                                    Ok(()) => break,
                                    Err(StoreError::Collected { .. }) => {
                                        again.fetch_add(1, Ordering::Relaxed);
                                    }
                                    Err(error) => panic!("{error}"),
                                }
                            }
                            saved.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {
                            let Some(manifest) = store.get_manifest(&which).unwrap() else {
                                continue;
                            };
                            if let Some(hash) = wrong_chunk(store, &manifest).unwrap() {
                                let now = store.get_manifest(&which).unwrap();
                                assert_ne!(now, Some(manifest), "chunk {hash} of {which} is gone");
                            }
                            read.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    println!("\n{} saved, {} of them begun again, {} read", saved.into_inner(), again.into_inner(), read.into_inner());
}
