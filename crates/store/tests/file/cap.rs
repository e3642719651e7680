//! The size cap, with several processes that fill the store.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use transload_store::StoreError;
use transload_store::backend::Backend;
use transload_store::backend::file::{FileOptions, FileStore};

use crate::saving::{Random, again, called, chunk, count, name, verify};

const CAP: u64 = 4 << 20;

fn open_capped(root: &Path) -> FileStore {
    FileStore::open(root, FileOptions { cap: Some(CAP), ..FileOptions::default() }).unwrap()
}

/// Returns the sum of the sizes of all files. It holds the lock under which files grow or are removed.
fn size(root: &Path) -> u64 {
    let usage = std::fs::File::open(root.join("usage")).unwrap();
    rustix::fs::flock(&usage, FlockOperation::LockExclusive).unwrap();
    let (mut sum, mut seen) = (0, std::collections::HashSet::new());
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            // What is moved meanwhile is seen twice, or gone.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                todo.push(entry.path());
            } else if seen.insert(std::os::unix::fs::MetadataExt::ino(&metadata)) {
                sum += metadata.len();
            }
        }
    }
    let accounts = std::fs::read(root.join("usage")).unwrap();
    let accounts = u64::from_le_bytes(accounts[..8].try_into().unwrap());
    assert!(sum <= accounts, "{sum} bytes, and the accounts say {accounts}");
    sum
}

#[test]
fn the_cap_holds_whoever_saves() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    drop(open_capped(&root));
    let mut children: Vec<_> = (0..4)
        .map(|n| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            again(&mut command, "cap::other_process", &root, &n.to_string());
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let mut most = 0;
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        let now = size(&root);
        assert!(now <= CAP, "{now} bytes are more than {CAP}");
        most = most.max(now);
        std::thread::sleep(Duration::from_millis(5));
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    println!("at most {most} of {CAP} bytes");
    assert!(most > CAP / 2, "{most}");
    verify(&open_capped(&root));
}

#[test]
#[ignore = "a process of the test above"]
fn other_process() {
    let Some((root, role)) = called() else { return };
    let seed: u64 = role.parse().unwrap();
    let store = open_capped(Path::new(&root));
    let end = Instant::now() + Duration::from_secs(count("TRANSLOAD_TEST_SECONDS", 4));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random(seed << 32 | thread);
                let mut saved = 0;
                while Instant::now() < end {
                    let chunks: Vec<_> = (0..20).map(|_| chunk(random.below(5000))).collect();
                    let data: Vec<u8> = chunks.iter().flat_map(|c| c.0.as_bytes()).copied().collect();
                    let put = chunks
                        .iter()
                        .try_for_each(|(hash, data)| store.put_chunk(hash, data).map(drop))
                        .and_then(|()| store.put_manifest(&name(&random.below(1000).to_string()), &data));
                    match put {
                        Ok(()) => saved += 1,
                        // Others hold what is left, or needed it more.
                        Err(StoreError::Collected { .. } | StoreError::Full { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(saved > 0);
            });
        }
    });
}
