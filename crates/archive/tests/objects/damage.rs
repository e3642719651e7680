//! Objects with missing or damaged pieces or manifests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use transload_archive::objects::{ObjectError, Objects, PIECE, Record, Source, Target};
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::backend::{Inventory, MemoryStore, Tier, TierStore, Write};
use transload_store::{Backend, ChunkHash, Put, StoreError};
use transload_test_stores::{Call, Counted, Flaw, Flawed, Meanwhile, Step};

use crate::bounds::name;
use crate::model::{content, get, put};

const LEN: usize = PIECE + 1000;

fn objects(store: &Arc<Flawed>) -> Objects {
    let store: Arc<dyn Backend> = store.clone();
    Objects::new(store, b"ns").unwrap().with_threads(1)
}

fn pieces(seed: u64) -> Vec<ChunkHash> {
    let bytes = content(seed, LEN);
    bytes.chunks(PIECE).map(|piece| blake3::hash(piece).into()).collect()
}

fn flaws(piece: &[u8]) -> [Flaw; 4] {
    let mut flipped = piece.to_vec();
    flipped[100] ^= 4;
    [Flaw::Lost, Flaw::Other(flipped.into()), Flaw::Other(Bytes::copy_from_slice(&piece[1..])), Flaw::Refused]
}

/// Any handle can put it, whether or not it has read the damaged piece.
#[test]
fn a_flawed_piece_is_a_miss_and_the_next_put_heals_it() {
    let bytes = content(1, LEN);
    for (n, piece) in bytes.chunks(PIECE).enumerate() {
        for flaw in flaws(piece) {
            let store = Arc::new(Flawed::default());
            let objects = objects(&store);
            put(&objects, b"one", b"m", &bytes);
            put(&objects, b"two", b"m", &content(2, LEN));
            store.spoil(pieces(1)[n], flaw.clone());

            let (mut one, mut two) = (vec![9; LEN], vec![9; LEN]);
            let (mut first, mut second) = ([(&mut one).into()], [(&mut two).into()]);
            let read = objects
                .get(&mut [Target { key: b"one", parts: &mut first }, Target { key: b"two", parts: &mut second }]);
            let read = read.unwrap();
            assert_eq!(read[0], None, "{n} {flaw:?}");
            // Others of the batch are none the worse.
            assert!(read[1].is_some() && two == content(2, LEN));
            // Nothing of what is damaged was written, and what came before it is as it was put.
            assert!(one[n * PIECE..].iter().all(|byte| *byte == 9));
            assert!(one[..n * PIECE] == bytes[..n * PIECE]);

            assert_eq!(objects.has(&[b"one"]).unwrap(), [None]);
            assert_eq!(put(&objects, b"one", b"m", &bytes), Put::Stored);
            assert!(get(&objects, b"one", LEN) == Some((b"m".to_vec(), bytes.clone())));
        }
    }
}

/// A piece that was not read since it was damaged is written again with another object that contains it.
#[test]
fn a_put_makes_sure_of_what_is_there_already() {
    let bytes = content(1, LEN);
    for flaw in flaws(&bytes[..PIECE]) {
        let store = Arc::new(Flawed::default());
        let objects = objects(&store);
        put(&objects, b"one", b"", &bytes);
        store.spoil(pieces(1)[0], flaw);
        put(&objects, b"other", b"", &bytes);
        for key in [&b"one"[..], b"other"] {
            assert!(get(&objects, key, LEN) == Some((vec![], bytes.clone())));
        }
    }
}

/// An object must not be reported as stored if it is not.
#[test]
fn a_store_that_keeps_what_is_damaged_takes_no_object_of_it() {
    let bytes = content(1, LEN);
    for flaw in flaws(&bytes[..PIECE]).into_iter().skip(1) {
        let store = Arc::new(Flawed::never_healing());
        let objects = objects(&store);
        put(&objects, b"one", b"", &bytes);
        store.spoil(pieces(1)[0], flaw);
        let source = Source { key: b"other", meta: b"", parts: &[(&bytes).into()] };
        let error = objects.put(&[source]).unwrap_err();
        assert!(matches!(error, ObjectError::Store(StoreError::Damaged { .. })), "{error}");
        assert_eq!(objects.has(&[b"other"]).unwrap(), [None]);
    }
}

/// After a reader found an object broken and before it removes it, the object is put again or repaired.
#[test]
fn an_object_that_is_put_again_meanwhile_is_not_removed() {
    for (meanwhile, is_left) in [
        (None, false),
        (Some((Step::Delete, Meanwhile::Puts)), true),
        (Some((Step::LookUp, Meanwhile::Mends)), true),
        (Some((Step::LookUp, Meanwhile::Silences)), true),
    ] {
        let store = Arc::new(Flawed::default());
        let objects = objects(&store);
        put(&objects, b"one", b"", &content(1, LEN));
        store.spoil(pieces(1)[1], Flaw::Lost);
        store.meanwhile(meanwhile);
        assert_eq!(get(&objects, b"one", LEN), None);
        let found = objects.has(&[b"one"]).unwrap();
        assert_eq!(found[0].is_some(), is_left, "{meanwhile:?}");
    }
}

#[test]
fn a_store_without_revisions_heals() {
    let bytes = content(1, LEN);
    let store = Arc::new(Flawed::without_revisions(Step::LookUp));
    let objects = objects(&store);
    put(&objects, b"one", b"", &bytes);
    store.spoil(pieces(1)[0], Flaw::Lost);
    assert_eq!(get(&objects, b"one", LEN), None);
    assert_eq!(put(&objects, b"one", b"", &bytes), Put::Stored);
    assert!(get(&objects, b"one", LEN) == Some((vec![], bytes)));
}

/// If the store cannot be asked, that is an error and not a miss, and its objects stay.
#[test]
fn silence_is_no_miss() {
    let store = Arc::new(Flawed::default());
    let objects = objects(&store);
    put(&objects, b"one", b"", &content(1, LEN));
    store.spoil(pieces(1)[1], Flaw::Silent);
    let mut bytes = vec![0; LEN];
    let mut parts = [(&mut bytes).into()];
    let target = Target { key: b"one", parts: &mut parts };
    let error = objects.get(&mut [target]).unwrap_err();
    assert!(matches!(error, ObjectError::Store(StoreError::Remote { .. })), "{error}");
    assert!(objects.has(&[b"one"]).unwrap()[0].is_some());
}

/// A collection, or a failed save of another thread, came in between. The pieces are put again.
#[test]
fn what_was_collected_before_it_was_published_is_put_again() {
    for (collections, is_put) in [(1, true), (2, false)] {
        let store = Arc::new(Flawed::default());
        let objects = objects(&store);
        store.collect(collections);
        let source = Source { key: b"one", meta: b"", parts: &[b"bytes".into()] };
        let put = objects.put(&[source]);
        assert_eq!(put.is_ok(), is_put);
        assert_eq!(get(&objects, b"one", 5).is_some(), is_put);
    }
}

/// This holds for any number of keys.
#[test]
fn a_look_up_is_one_call_of_the_store() {
    let store = Arc::new(Counted::new(MemoryStore::new()));
    let objects = Objects::new(store.clone(), b"ns").unwrap();
    let keys: Vec<[u8; 4]> = (0..1000_u32).map(u32::to_le_bytes).collect();
    for key in keys.iter().step_by(2) {
        put(&objects, key, key, b"some");
    }
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let (before, _) = store.count(Call::GetManifest);
    let found = objects.has(&keys).unwrap();
    assert_eq!(store.count(Call::GetManifest).0, before + 1);
    for (n, (info, key)) in found.iter().zip(keys).enumerate() {
        let expected = n.is_multiple_of(2).then_some((4, key));
        assert_eq!(info.as_ref().map(|info| (info.bytes, &info.meta[..])), expected);
    }
}

/// The manifest is cut at every byte, has each bit flipped, is longer, or belongs to another key or namespace.
#[test]
fn a_manifest_that_is_not_as_it_was_put_is_a_miss_and_replaced() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let objects = Objects::new(store.clone(), b"ns").unwrap();
    let bytes = content(1, 100);
    put(&objects, b"one", b"meta", &bytes);
    put(&objects, b"other", b"meta", &content(2, 100));
    let strange = Objects::new(store.clone(), b"another").unwrap();
    put(&strange, b"one", b"meta", &content(3, 100));

    let own = name(b"ns", b"one");
    let whole = store.get_manifest(&own).unwrap().unwrap();
    let mut wrong: Vec<Vec<u8>> = (0..whole.len()).map(|end| whole[..end].to_vec()).collect();
    wrong.extend((0..whole.len() * 8).map(|bit| {
        let mut changed = whole.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    }));
    wrong.push([&whole[..], b"\0"].concat());
    wrong.push(vec![7; 1 << 20]);
    let others = [(&b"ns"[..], &b"other"[..]), (b"another", b"one")];
    wrong.extend(others.map(|(namespace, key)| {
        let other = name(namespace, key);
        store.get_manifest(&other).unwrap().unwrap().to_vec()
    }));
    for manifest in wrong {
        store.put_manifest(&own, &manifest).unwrap();
        assert!(Record::read(&own, &manifest).unwrap().is_err());
        assert_eq!(objects.has(&[b"one"]).unwrap(), [None]);
        assert_eq!(get(&objects, b"one", 100), None);
    }
    assert_eq!(put(&objects, b"one", b"meta", &bytes), Put::Stored);
    assert_eq!(store.get_manifest(&own).unwrap().unwrap(), whole);
}

fn pack(root: &Path) -> PathBuf {
    let folders = fs::read_dir(root.join("packs")).unwrap();
    let mut packs = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    packs.next().unwrap().unwrap().path()
}

/// One process finds damage on the disk. Another one, which has not seen it, puts the object again.
#[test]
fn in_a_folder_whoever_puts_it_heals_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    let open = || -> Objects {
        let store = FileStore::open(&root, FileOptions::default()).unwrap();
        Objects::new(Arc::new(store), b"ns").unwrap()
    };
    let (writer, reader) = (open(), open());
    let bytes = content(1, 5000);
    put(&writer, b"one", b"", &bytes);
    let pack = pack(&root);
    let mut damaged = fs::read(&pack).unwrap();
    damaged[100] ^= 1;
    let mode = fs::metadata(&pack).unwrap().permissions();
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, damaged).unwrap();
    fs::set_permissions(&pack, mode).unwrap();

    let (old, new) = (open(), open());
    assert_eq!(put(&old, b"one", b"", &bytes), Put::AlreadyThere, "nobody has read it");
    assert_eq!(get(&reader, b"one", 5000), None);
    assert_eq!(put(&new, b"one", b"", &bytes), Put::Stored);
    for objects in [writer, reader, old, open()] {
        assert!(get(&objects, b"one", 5000) == Some((vec![], bytes.clone())));
    }
}

/// A manifest that the store refuses does not end the batch.
#[test]
fn in_a_folder_a_damaged_manifest_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("kv");
    let store = Arc::new(FileStore::open(&root, FileOptions::default()).unwrap());
    let objects = Objects::new(store.clone(), b"ns").unwrap();
    put(&objects, b"one", b"", b"bytes");
    let mut files =
        fs::read_dir(root.join("manifests")).unwrap().flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    let file = files.next().unwrap().unwrap().path();
    let whole = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    put(&objects, b"two", b"", b"bytes");

    let found = objects.has(&[b"one", b"two"]).unwrap();
    assert!(found[0].is_none() && found[1].is_some());
    assert_eq!(objects.list().unwrap().len(), 1);
    assert_eq!(put(&objects, b"one", b"", b"bytes"), Put::Stored);
    assert_eq!(objects.list().unwrap().len(), 2);
    let mut fault = |fault| panic!("{fault:?}");
    store.verify(&mut |_| (), &mut fault).unwrap();
}

/// A cache in front of the store has other bytes under the hash of a piece.
#[test]
fn a_wrong_copy_in_memory_costs_nothing() {
    let (memory, bytes) = (MemoryStore::new(), content(1, 9000));
    let wrong = vec![6; bytes.len()];
    memory.put_chunk(&blake3::hash(&bytes).into(), &wrong).unwrap();
    let tiers = vec![Tier::memory("memory", memory), Tier::new("below", Arc::new(MemoryStore::new()))];
    let store = Arc::new(TierStore::new(tiers, Write::Through).unwrap());
    let objects = Objects::new(store, b"ns").unwrap();
    for key in [b"one", b"two"] {
        put(&objects, key, b"", &bytes);
        assert!(get(&objects, key, bytes.len()) == Some((vec![], bytes.clone())));
    }
}
