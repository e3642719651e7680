//! Properties that objects have from their store: shared pieces, a cap, and collections.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use transload_archive::objects::{Objects, PIECE, Source};
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{CollectOptions, Inventory};

use crate::model::{content, get, put};

fn open(root: &Path, cap: Option<u64>) -> (Arc<FileStore>, Objects) {
    let mut options = FileOptions { grace: Duration::ZERO, ..FileOptions::default() };
    options.cap = cap;
    let store = Arc::new(FileStore::open(root, options).unwrap());
    let objects = Objects::new(store.clone(), b"ns").unwrap();
    (store, objects)
}

#[test]
fn what_objects_share_is_kept_once_and_goes_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let (store, objects) = open(&folder.path().join("kv"), None);
    let bytes = content(1, 2 * PIECE + 100);
    put(&objects, b"two", b"", &bytes[..2 * PIECE]);
    // Its first two pieces are the same.
    put(&objects, b"one", b"", &bytes);
    let usage = store.usage().unwrap();
    assert_eq!((usage.manifests, usage.chunks), (2, 3));
    assert_eq!(usage.chunk_bytes, bytes.len() as u64);

    let collect = || {
        let now = CollectOptions { grace: Duration::ZERO, ..CollectOptions::default() };
        store.collect(&now, &mut |_| ()).unwrap().chunks
    };
    assert_eq!(collect(), 0);
    objects.delete(&[b"one"]).unwrap();
    assert_eq!(collect(), 1);
    assert!(get(&objects, b"two", 2 * PIECE) == Some((vec![], bytes[..2 * PIECE].to_vec())));
    // Replaced by what has none of them.
    put(&objects, b"two", b"", &content(2, 5));
    assert_eq!(collect(), 2);
    assert!(get(&objects, b"two", 5) == Some((vec![], content(2, 5))));
}

const LEN: usize = 100_000;

/// The least recently used objects are evicted. A look-up counts as a use.
#[test]
fn a_cap_takes_what_was_not_used_for_longest() {
    let folder = tempfile::tempdir().unwrap();
    let (_, objects) = open(&folder.path().join("kv"), Some(12 * LEN as u64));
    for n in 0..10 {
        put(&objects, &[n], b"", &content(n.into(), LEN));
    }
    // A use is noted if the last one is some time ago.
    std::thread::sleep(Duration::from_millis(50));
    let used: [&[u8]; 3] = [&[0], &[1], &[2]];
    assert!(objects.has(&used).unwrap().iter().all(Option::is_some));

    for n in 10..16 {
        put(&objects, &[n], b"", &content(n.into(), LEN));
    }
    let listed = objects.list().unwrap();
    let left = |n: u8| listed.iter().any(|one| one.key == [n]);
    assert!((0..3).all(left), "they were used");
    assert!(!left(3) && !left(4), "they were not");
    assert!((10..16).all(left), "they are new");
    for one in listed {
        assert!(get(&objects, &one.key, LEN).is_some());
    }
}

/// Among objects that are put or looked up together, the last one is evicted first.
#[test]
fn the_first_of_a_batch_is_used_last() {
    let folder = tempfile::tempdir().unwrap();
    let (_, objects) = open(&folder.path().join("kv"), None);
    // More than are published at once.
    let keys: Vec<[u8; 2]> = (0..300_u16).map(u16::to_be_bytes).collect();
    let sources = keys.iter().map(|key| Source { key, meta: b"", parts: &[] });
    objects.put(&sources.collect::<Vec<_>>()).unwrap();
    let is_in_order = || {
        let mut listed = objects.list().unwrap();
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(listed.len(), 300);
        let times = listed.iter().map(|one| one.last_used.unwrap());
        times.is_sorted_by(|first, second| first >= second)
    };
    assert!(is_in_order());
    std::thread::sleep(Duration::from_millis(50));
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    objects.has(&keys).unwrap();
    assert!(is_in_order());
}
