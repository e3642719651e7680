//! Two processes that put, read, remove and collect in one folder.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use transload_archive::objects::{ObjectError, Objects, Source};
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{CollectOptions, Inventory};
use transload_store::{Backend, StoreError};

use crate::model::{Random, content, get};

const ROOT: &str = "TRANSLOAD_TEST_ROOT";
const ROLE: &str = "TRANSLOAD_TEST_ROLE";

fn other(root: &Path, role: u64) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["processes::other_process", "--exact", "--ignored", "--nocapture"]);
    command.env(ROOT, root).env(ROLE, role.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn open(root: &Path) -> Arc<FileStore> {
    Arc::new(FileStore::open(root, FileOptions::default()).unwrap())
}

/// Returns the bytes of an object. They depend only on key and length, so a reader knows what to expect.
fn value(key: u64, len: usize) -> Vec<u8> {
    content((key % 3) << 32 | len as u64, len)
}

/// Collections have no grace. So pieces that a put found may be removed before it publishes its object, and objects
/// with missing pieces are misses. A read never returns anything but what was put.
#[test]
fn what_is_read_is_what_was_put() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    drop(open(&root));
    let children = [1, 2].map(|role| other(&root, role));
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        let line = text.lines().find(|line| line.contains(" put, ")).unwrap();
        println!("{line}");
        assert!(!line.starts_with("0 put") && !line.contains(" 0 read"), "{line}");
    }
    let store = open(&root);
    store.verify(&mut |_| (), &mut |fault| panic!("{fault:?}")).unwrap();
    // One that is left can be put and read here.
    let objects = Objects::new(store, b"ns").unwrap();
    for one in objects.list().unwrap() {
        let key = u64::from_le_bytes(one.key.as_slice().try_into().unwrap());
        let len = one.info.bytes as usize;
        assert!(get(&objects, &one.key, len) == Some((vec![], value(key, len))));
    }
}

#[test]
#[ignore = "a process of the test above"]
fn other_process() {
    let (Ok(root), Ok(role)) = (std::env::var(ROOT), std::env::var(ROLE)) else {
        return;
    };
    let store = open(Path::new(&root));
    let shared: Arc<dyn Backend> = store.clone();
    let objects = Objects::new(shared, b"ns").unwrap();
    let mut random = Random(role.parse().unwrap());
    let seconds = std::env::var("TRANSLOAD_TEST_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(3);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut puts, mut reads, mut misses) = (0, 0, 0);
    while Instant::now() < end || reads == 0 {
        let (n, len) = (random.below(6), random.below(3) as usize * 5000);
        let key = n.to_le_bytes();
        match random.below(10) {
            0 => objects.delete(&[&key]).unwrap(),
            1 => {
                let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
                store.collect(&now, &mut |_| ()).unwrap();
            }
            2..6 => loop {
                let bytes = value(n, len);
                let source = Source { key: &key, meta: b"", parts: &[(&bytes).into()] };
                match objects.put(&[source]) {
                    Ok(_) => break puts += 1,
                    Err(ObjectError::Store(StoreError::Collected { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            },
            _ => match get(&objects, &key, len) {
                Some((_, bytes)) => {
                    assert!(bytes == value(n, len));
                    reads += 1;
                }
                None => misses += 1,
            },
        }
    }
    println!("\n{puts} put, {reads} read, {misses} misses");
}
