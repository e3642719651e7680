//! Tests of a store when nothing goes wrong.

use bytes::Bytes;

use super::super::{FileOptions, FileStore};
use crate::backend::{Backend, CollectOptions, Put};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use std::time::Duration;

fn name(text: &str) -> ManifestName {
    ManifestName::new(text).unwrap()
}

fn chunk(n: u32, len: usize) -> (ChunkHash, Vec<u8>) {
    let mut data = vec![0; len];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut data);
    (blake3::hash(&data).into(), data)
}

fn open(folder: &tempfile::TempDir) -> FileStore {
    FileStore::open(folder.path(), FileOptions::default()).unwrap()
}

#[test]
fn keeps_what_is_put() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let chunks: Vec<_> = (0..20).map(|n| chunk(n, n as usize * 1000)).collect();
    for (hash, data) in &chunks {
        assert_eq!(store.put_chunk(hash, data).unwrap(), Put::Stored);
        assert_eq!(store.put_chunk(hash, b"other").unwrap(), Put::AlreadyThere);
        assert_eq!(store.get_chunk(hash).unwrap().unwrap(), data);
    }
    let other = open(&folder);
    assert_eq!(other.get_chunk(&chunks[3].0).unwrap(), None);
    store.put_manifest(&name("m"), b"data").unwrap();
    for store in [&store, &other, &open(&folder)] {
        for (hash, data) in &chunks {
            assert_eq!(store.get_chunk(hash).unwrap().unwrap(), data);
            assert_eq!(store.put_chunk(hash, data).unwrap(), Put::AlreadyThere);
        }
        assert_eq!(store.get_manifest(&name("m")).unwrap().unwrap(), "data");
        assert_eq!(store.get_manifest(&name("n")).unwrap(), None);
    }
    other.delete_manifest(&name("m")).unwrap();
    other.delete_manifest(&name("m")).unwrap();
    assert_eq!(store.get_manifest(&name("m")).unwrap(), None);
}

#[test]
fn looking_at_a_manifest_is_no_use_and_reading_it_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    store.put_manifest(&name("m"), b"data").unwrap();
    let inventory = store.inventory().unwrap();
    let last_used = || {
        let mut times = Vec::new();
        let listed = inventory.manifests(&mut |entry| {
            times.push(entry.last_used.unwrap());
            Ok(())
        });
        listed.unwrap();
        times
    };
    let put = last_used();
    std::thread::sleep(Duration::from_millis(50));
    let peeked = inventory.peek_manifests(&[name("m"), name("n")]).unwrap();
    assert_eq!(peeked, [Some(Bytes::from_static(b"data")), None]);
    assert_eq!(last_used(), put);
    store.get_manifest(&name("m")).unwrap().unwrap();
    assert!(last_used() > put);
}

#[test]
fn collects_what_nothing_refers_to() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let chunks: Vec<_> = (0..10).map(|n| chunk(n, 10_000)).collect();
    for (hash, data) in &chunks[..5] {
        store.put_chunk(hash, data).unwrap();
    }
    store.put_manifest(&name("a"), b"").unwrap();
    for (hash, data) in &chunks[5..] {
        store.put_chunk(hash, data).unwrap();
    }
    store.put_manifest(&name("b"), b"").unwrap();
    // Names one chunk of the second pack, in its bytes.
    store.put_manifest(&name("c"), chunks[7].0.as_bytes()).unwrap();
    let inventory = store.inventory().unwrap();
    let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
    let collected = inventory.collect(&now, &mut |_| ()).unwrap();
    assert_eq!(collected, Default::default());
    store.delete_manifest(&name("b")).unwrap();
    let kept = inventory.collect(&CollectOptions::default(), &mut |_| ()).unwrap();
    assert_eq!((kept.chunks, kept.in_grace), (0, 4));
    let dry = inventory.collect(&CollectOptions { dry_run: true, ..now.clone() }, &mut |_| ()).unwrap();
    let before = inventory.usage().unwrap().total_bytes;
    let other = open(&folder);
    let collected = inventory.collect(&now, &mut |_| ()).unwrap();
    assert_eq!((collected.chunks, collected.manifests), (4, 0));
    assert_eq!((dry.chunks, dry.bytes), (collected.chunks, collected.bytes));
    assert_eq!(inventory.usage().unwrap().total_bytes, before - collected.bytes);
    for store in [&store, &other] {
        for (n, (hash, data)) in chunks.iter().enumerate() {
            let there = store.get_chunk(hash).unwrap();
            assert_eq!(there.as_deref(), (n < 5 || n == 7).then_some(&data[..]), "{n}");
        }
    }
    inventory.verify(&mut |_| (), &mut |fault| panic!("{fault:?}")).unwrap();
}

#[test]
fn what_was_collected_between_put_and_manifest_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (open(&folder), open(&folder));
    let (hash, data) = chunk(1, 100);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name("a"), b"").unwrap();
    assert_eq!(store.put_chunk(&hash, &data).unwrap(), Put::AlreadyThere);
    other.delete_manifest(&name("a")).unwrap();
    let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
    other.inventory().unwrap().collect(&now, &mut |_| ()).unwrap();
    let error = store.put_manifest(&name("b"), b"").unwrap_err();
    assert!(matches!(error, StoreError::Collected { hash: h } if h == hash), "{error}");
    assert_eq!(store.get_manifest(&name("b")).unwrap(), None);
    assert_eq!(store.put_chunk(&hash, &data).unwrap(), Put::Stored);
    store.put_manifest(&name("b"), b"").unwrap();
    assert_eq!(other.get_chunk(&hash).unwrap().unwrap(), data);
}

#[test]
fn the_cap_holds_and_the_least_recently_used_go() {
    let folder = tempfile::tempdir().unwrap();
    let cap = 1 << 20;
    let options = FileOptions { cap: Some(cap), ..FileOptions::default() };
    let store = FileStore::open(folder.path(), options).unwrap();
    let inventory = store.inventory().unwrap();
    for n in 0..50 {
        let (hash, data) = chunk(n, 100_000);
        store.put_chunk(&hash, &data).unwrap();
        store.put_manifest(&name(&n.to_string()), hash.as_bytes()).unwrap();
        let usage = inventory.usage().unwrap();
        assert!(usage.total_bytes <= cap, "{usage:?}");
        assert_eq!(store.get_chunk(&hash).unwrap().unwrap(), data);
    }
    assert!(store.get_manifest(&name("0")).unwrap().is_none());
    let usage = inventory.usage().unwrap();
    assert!(usage.manifests >= 5 && usage.manifests == usage.chunks, "{usage:?}");
    let (hash, data) = chunk(99, 2 << 20);
    let error = store.put_chunk(&hash, &data).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(inventory.usage().unwrap().manifests, usage.manifests, "nothing went in vain");
}

/// Rewriting a pack needs space before it frees any. So if there is none, manifests are evicted instead.
#[test]
fn what_has_no_room_to_be_written_anew_goes() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions { cap: Some(1 << 20), ..FileOptions::default() };
    let store = FileStore::open(folder.path(), options).unwrap();
    let chunks: Vec<_> = (0..9).map(|n| chunk(n, 100_000)).collect();
    let mut batch = Vec::new();
    for (n, (hash, data)) in chunks.iter().enumerate() {
        store.put_chunk(hash, data).unwrap();
        batch.push((name(&n.to_string()), Bytes::copy_from_slice(hash.as_bytes())));
    }
    // One pack, of which each manifest needs a ninth.
    store.put_manifests(&batch).unwrap();
    let (hash, data) = chunk(99, 300_000);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name("new"), hash.as_bytes()).unwrap();
    let usage = store.inventory().unwrap().usage().unwrap();
    assert!(usage.total_bytes <= 1 << 20, "{usage:?}");
    assert_eq!((usage.manifests, usage.chunks), (2, 2), "{usage:?}");
    assert_eq!(store.get_chunk(&chunks[8].0).unwrap().unwrap(), chunks[8].1);
}

#[test]
fn a_batch_is_published_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let (hash, data) = chunk(1, 100);
    store.put_chunk(&hash, &data).unwrap();
    let batch: Vec<_> = (0..10).map(|n| (name(&format!("part {n}")), Bytes::from(vec![n]))).collect();
    store.put_manifests(&batch).unwrap();
    let names: Vec<_> = batch.iter().map(|(name, _)| name.clone()).collect();
    let got = open(&folder).get_manifests(&names).unwrap();
    for ((_, put), got) in batch.iter().zip(got) {
        assert_eq!(got.as_ref(), Some(put));
    }
}

#[test]
fn a_store_is_found_from_below_and_nothing_else_becomes_one() {
    let folder = tempfile::tempdir().unwrap();
    let root = open(&folder);
    let below = folder.path().join("slot1/x");
    let slot = FileStore::open(&below, FileOptions::default()).unwrap();
    let uri = format!("file://{}/", below.display()).parse().unwrap();
    let same = FileStore::open_uri(&uri, FileOptions::default()).unwrap();
    slot.put_manifest(&name("m"), b"1").unwrap();
    assert_eq!(same.get_manifest(&name("m")).unwrap().unwrap(), "1");
    assert_eq!(root.get_manifest(&name("slot1/x/m")).unwrap().unwrap(), "1");
    assert!(!below.exists());

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("precious"), "x").unwrap();
    for path in [other.path(), "relative".as_ref(), "/tmp/../tmp/x".as_ref()] {
        let error = FileStore::open(path, FileOptions::default()).unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    }
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1);
}

/// Verifying reports it. Everything else in the store is listed and counted.
#[test]
fn what_cannot_be_read_in_the_place_of_a_manifest_is_no_hindrance() {
    for which in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        store.put_manifest(&name("a"), b"1").unwrap();
        store.put_manifest(&name("b"), b"2").unwrap();
        let path = folder.path().join(super::super::paths::manifest("a"));
        std::fs::remove_file(&path).unwrap();
        match which {
            0 => std::os::unix::fs::symlink("/etc/hostname", &path).unwrap(),
            _ => std::fs::create_dir(&path).unwrap(),
        }
        let inventory = store.inventory().unwrap();
        let mut names = Vec::new();
        let mut list = |entry: crate::backend::ManifestEntry| {
            names.push(entry.name.to_string());
            Ok(())
        };
        inventory.manifests(&mut list).unwrap();
        assert_eq!(names, ["b"]);
        let usage = inventory.usage().unwrap();
        assert_eq!((usage.manifests, usage.manifest_bytes), (2, 1));
        let mut faults = 0;
        let mut count = |_| faults += 1;
        inventory.verify(&mut |_| (), &mut count).unwrap();
        assert_eq!(faults, 1);
    }
}
