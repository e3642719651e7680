//! A process that is stopped while it holds a lock.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{Backend, CollectOptions};
use transload_store::{ChunkHash, ManifestName, StoreError};

/// Takes a lock of a file in another process, and stops that one.
struct Stopped(Child);

impl Stopped {
    fn holding(file: &std::path::Path) -> Option<Self> {
        let script = r#"exec 9<"$0"; flock "$1" 9; echo held; exec sleep 600"#;
        let mut child =
            Command::new("sh").args(["-c", script]).arg(file).arg("-x").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let this = Self(child);
        if line != "held\n" {
            println!("NOT RUN: there is no flock(1) on this machine");
            return None;
        }
        let pid = this.0.id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &pid]).status();
        assert!(stopped.unwrap().success());
        Some(this)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn is_locked<T: std::fmt::Debug>(done: Result<T, StoreError>, by: &str) {
    match done {
        Err(StoreError::Locked { lock, .. }) => assert_eq!(lock, by),
        other => panic!("{by}: {other:?}"),
    }
}

#[test]
fn every_call_ends_while_somebody_is_stopped_with_a_lock() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    let options = || FileOptions { lock_timeout: Duration::from_millis(50), ..FileOptions::default() };
    let capped = || FileOptions { cap: Some(1 << 30), ..options() };
    let name = ManifestName::new("m").unwrap();
    let hash = |n: u8| ChunkHash::from([n; 32]);
    let store = FileStore::open(&root, options()).unwrap();
    store.put_chunk(&hash(1), b"one").unwrap();
    store.put_manifest(&name, b"m").unwrap();
    for lock in ["store.lock", "gate.lock"] {
        let Some(stopped) = Stopped::holding(&root.join(lock)) else {
            return;
        };
        // It can be opened and read.
        let other = FileStore::open(&root, options()).unwrap();
        assert_eq!(other.get_chunk(&hash(1)).unwrap().unwrap(), "one");
        assert_eq!(other.get_manifest(&name).unwrap().unwrap(), "m");
        other.put_chunk(&hash(2), b"two").unwrap();
        is_locked(other.put_manifest(&name, b"n"), lock);
        is_locked(other.delete_manifest(&name), lock);
        let collect = CollectOptions::default();
        is_locked(other.inventory().unwrap().collect(&collect, &mut |_| ()), lock);
        let (_, revision) = other.manifest_revision(&name).unwrap().unwrap();
        is_locked(other.delete_revision(&name, &revision), lock);
        // Threads of one handle wait for each other, too.
        std::thread::scope(|scope| {
            for n in 10..14 {
                let other = &other;
                scope.spawn(move || {
                    other.put_chunk(&hash(n), b"more").unwrap();
                    let name = ManifestName::new(n.to_string()).unwrap();
                    let put = other.put_manifest(&name, b"n");
                    assert!(matches!(put, Err(StoreError::Locked { .. })), "{put:?}");
                });
            }
        });
        drop(stopped);
        // What was put is not lost for it, unless its pack could not be published.
        store.put_chunk(&hash(2), b"two").unwrap();
        store.put_manifest(&name, b"m").unwrap();
        assert_eq!(store.get_chunk(&hash(2)).unwrap().unwrap(), "two");
    }
    let Some(stopped) = Stopped::holding(&root.join("usage")) else {
        return;
    };
    is_locked(FileStore::open(&root, capped()), "usage");
    drop(stopped);
    drop(FileStore::open(&root, capped()).unwrap());
}
