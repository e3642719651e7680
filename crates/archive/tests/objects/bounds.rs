//! Refused arguments, and the largest and smallest accepted ones.

use std::sync::Arc;

use transload_archive::objects::{
    LARGEST, LONGEST_META, LONGEST_NAME, ObjectError, Objects, PIECE, Part, PartMut, Record, Source, Target,
};
use transload_store::backend::MemoryStore;
use transload_store::backend::file::{FileOptions, FileStore};
use transload_store::{Backend, ManifestName, Put, StoreError};
use transload_test_stores::forward;

use crate::model::{content, get, put};

pub(crate) fn name(namespace: &[u8], key: &[u8]) -> ManifestName {
    let mut hasher = blake3::Hasher::new_derive_key("transload.objects/1 name");
    hasher.update(&u32::try_from(namespace.len()).unwrap().to_le_bytes());
    hasher.update(namespace).update(key);
    let of_namespace = &blake3::hash(namespace).to_hex()[..32];
    let digest = hasher.finalize().to_hex();
    ManifestName::new(format!("transload.objects/1/{of_namespace}/{digest}")).unwrap()
}

fn new() -> Objects {
    Objects::new(Arc::new(MemoryStore::new()), b"ns").unwrap()
}

#[test]
fn namespaces_have_1_to_4096_bytes() {
    for len in [0, LONGEST_NAME + 1] {
        let error = Objects::new(Arc::new(MemoryStore::new()), &vec![7; len]).unwrap_err();
        assert!(matches!(error, ObjectError::Namespace { len: of } if of == len));
    }
    for len in [1, LONGEST_NAME] {
        Objects::new(Arc::new(MemoryStore::new()), &vec![7; len]).unwrap();
    }
}

/// A batch with a wrong key does nothing.
#[test]
fn keys_have_1_to_4096_bytes() {
    let objects = new();
    put(&objects, b"there", b"", b"bytes");
    for wrong in [&b""[..], &[7; LONGEST_NAME + 1]] {
        let keys = [b"there", wrong];
        let is_told = |error: ObjectError| {
            let len = wrong.len();
            assert!(matches!(error, ObjectError::Key { at: 1, len: of } if of == len), "{error}");
            assert!(error.to_string().contains("1 to 4096 bytes"), "{error}");
        };
        is_told(objects.has(&keys).unwrap_err());
        is_told(objects.delete(&keys).unwrap_err());
        let source = |key| Source { key, meta: b"other", parts: &[] };
        is_told(objects.put(&keys.map(source)).unwrap_err());
        let mut bytes = [0; 5];
        let mut parts = [(&mut bytes).into()];
        let targets = &mut [Target { key: keys[0], parts: &mut parts }, Target { key: keys[1], parts: &mut [] }];
        is_told(objects.get(targets).unwrap_err());
        assert_eq!(bytes, [0; 5]);
        assert!(get(&objects, b"there", 5) == Some((vec![], b"bytes".to_vec())));
    }
    put(&objects, &[7; LONGEST_NAME], b"", b"bytes");
    assert!(get(&objects, &[7; LONGEST_NAME], 5).is_some());
}

#[test]
fn meta_has_4096_bytes_at_most() {
    let objects = new();
    let meta = content(1, LONGEST_META);
    put(&objects, b"one", &meta, b"bytes");
    assert_eq!(get(&objects, b"one", 5).unwrap().0, meta);
    let source = Source { key: b"one", meta: &[7; LONGEST_META + 1], parts: &[] };
    let error = objects.put(&[source]).unwrap_err();
    assert!(matches!(error, ObjectError::Meta { at: 0, len } if len == LONGEST_META + 1));
}

/// The parts share the same memory, 64 GiB in total.
#[test]
fn objects_have_64_gib_at_most() {
    let objects = new();
    let part = vec![0; 1 << 28];
    let mut parts = vec![Part::from(&part); (LARGEST >> 28) as usize];
    parts.push(Part::from(&part[..1]));
    let source = Source { key: b"one", meta: b"", parts: &parts };
    let error = objects.put(&[source]).unwrap_err();
    assert!(matches!(error, ObjectError::TooLarge { at: 0, bytes } if bytes == LARGEST + 1));
    assert_eq!(objects.has(&[b"one"]).unwrap(), [None]);
}

#[test]
fn nothing_is_an_object() {
    let objects = new();
    assert_eq!(put(&objects, b"one", b"meta", b""), Put::Stored);
    assert_eq!(put(&objects, b"one", b"meta", b""), Put::AlreadyThere);
    assert_eq!(get(&objects, b"one", 0), Some((b"meta".to_vec(), vec![])));
    assert_eq!(get(&objects, b"one", 1), None);
    assert_eq!(get(&objects, b"two", 0), None);
}

#[test]
fn batches_may_be_empty_or_long() {
    let objects = new();
    assert_eq!(objects.put(&[]).unwrap(), []);
    assert_eq!(objects.get(&mut []).unwrap(), []);
    assert_eq!(objects.has(&[]).unwrap(), []);
    objects.delete(&[]).unwrap();

    let keys: Vec<[u8; 4]> = (0..10_000_u32).map(u32::to_le_bytes).collect();
    let parts: Vec<[Part<'_>; 1]> = keys.iter().map(|key| [key.into()]).collect();
    let sources = keys.iter().zip(&parts);
    let sources = sources.map(|(key, parts)| Source { key, meta: b"", parts });
    let sources: Vec<Source<'_>> = sources.collect();
    assert_eq!(objects.put(&sources).unwrap(), vec![Put::Stored; 10_000]);
    assert_eq!(objects.put(&sources).unwrap(), vec![Put::AlreadyThere; 10_000]);
    let mut memory = vec![[0; 4]; 10_000];
    let mut parts: Vec<[PartMut<'_>; 1]> = memory.iter_mut().map(|bytes| [bytes.into()]).collect();
    let targets = keys.iter().zip(&mut parts);
    let mut targets: Vec<Target<'_, '_>> = targets.map(|(key, parts)| Target { key, parts }).collect();
    assert!(objects.get(&mut targets).unwrap().iter().all(Option::is_some));
    assert_eq!(memory, keys);
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    objects.delete(&keys).unwrap();
    assert!(objects.has(&keys).unwrap().iter().all(Option::is_none));
}

/// The last object of a key counts. A read returns it as often as the key is listed.
#[test]
fn a_key_may_be_there_twice() {
    let objects = new();
    fn source<'a>(meta: &'a [u8], parts: &'a [Part<'a>]) -> Source<'a> {
        let key = b"one";
        Source { key, meta, parts }
    }
    let values = [[b"first".into()], [b"second".into()]];
    let put = objects.put(&[source(b"1", &values[0]), source(b"2", &values[1])]);
    assert_eq!(put.unwrap(), [Put::Stored; 2]);
    let (mut a, mut b) = ([0; 6], [0; 6]);
    let (mut first, mut second) = ([(&mut a).into()], [(&mut b).into()]);
    let read =
        objects.get(&mut [Target { key: b"one", parts: &mut first }, Target { key: b"one", parts: &mut second }]);
    assert!(read.unwrap().iter().all(Option::is_some));
    assert_eq!((&a, &b), (b"second", b"second"));
}

#[test]
fn another_length_or_meta_replaces_and_equal_ones_write_nothing() {
    let objects = new();
    let there = || get(&objects, b"one", 3);
    assert_eq!(put(&objects, b"one", b"m", b"abc"), Put::Stored);
    // It is taken to be the same.
    assert_eq!(put(&objects, b"one", b"m", b"xyz"), Put::AlreadyThere);
    assert_eq!(there(), Some((b"m".to_vec(), b"abc".to_vec())));
    assert_eq!(put(&objects, b"one", b"n", b"xyz"), Put::Stored);
    assert_eq!(there(), Some((b"n".to_vec(), b"xyz".to_vec())));
    assert_eq!(put(&objects, b"one", b"n", b"four"), Put::Stored);
    assert_eq!(there(), None);
    assert_eq!(get(&objects, b"one", 4), Some((b"n".to_vec(), b"four".to_vec())));
}

/// Keys and namespaces that look like paths, like patterns or like each other.
#[test]
fn no_two_names_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path().join("kv"), FileOptions::default()).unwrap();
    let store: Arc<dyn Backend> = Arc::new(store);
    let names: [&[u8]; 9] = [b"\0", b"\0\0", b"/", b"..", b"../../etc/passwd", b"a", b"A", b"\xff\xfe", b"a-SEP-b"];
    let all = || names.iter().flat_map(|namespace| names.map(|key| (*namespace, key)));
    for (namespace, key) in all() {
        let objects = Objects::new(store.clone(), namespace).unwrap();
        put(&objects, key, b"", &[namespace, b"|", key].concat());
        assert!(store.get_manifest(&name(namespace, key)).unwrap().is_some());
    }
    for (namespace, key) in all() {
        let objects = Objects::new(store.clone(), namespace).unwrap();
        assert_eq!(objects.list().unwrap().len(), names.len());
        let bytes = [namespace, b"|", key].concat();
        assert!(get(&objects, key, bytes.len()) == Some((vec![], bytes)));
    }
}

#[test]
fn a_manifest_lies_as_the_manual_says() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let objects = Objects::new(store.clone(), b"ns").unwrap();
    let bytes = content(1, PIECE + 5);
    put(&objects, b"key", b"bf16", &bytes);
    let mut expected = b"TLobjs\x01\n\x02ns\x03key".to_vec();
    // 4 MiB and 5 bytes, seven bits at a time.
    expected.extend([0x85, 0x80, 0x80, 0x02]);
    expected.extend(b"\x04bf16\x02");
    expected.extend(blake3::hash(&bytes[..PIECE]).as_bytes());
    expected.extend(blake3::hash(&bytes[PIECE..]).as_bytes());
    expected.extend(*blake3::hash(&expected).as_bytes());
    let name = name(b"ns", b"key");
    let manifest = store.get_manifest(&name).unwrap().unwrap();
    assert_eq!(manifest, expected);
    let below = format!("slot1/{name}").parse().unwrap();
    for name in [&name, &below] {
        let record = Record::read(name, &manifest).unwrap().unwrap();
        assert_eq!((&record.key[..], &record.namespace[..]), (&b"key"[..], &b"ns"[..]));
        assert_eq!((record.bytes, &record.meta[..]), (bytes.len() as u64, &b"bf16"[..]));
        assert_eq!(record.pieces().count(), 2);
    }
    assert!(Record::read(&"slot1".parse().unwrap(), &manifest).is_none());
}

/// The digest in the example was computed with Python's `blake3` package.
#[test]
fn the_manuals_example_is_one() {
    let store: Arc<dyn Backend> = Arc::new(MemoryStore::new());
    let objects = Objects::new(store.clone(), b"ns").unwrap();
    put(&objects, b"key", b"bf16", b"hello");
    let manifest = store.get_manifest(&name(b"ns", b"key")).unwrap().unwrap();
    let sum = "31ae91dc014258ff6b78f0dad2b31ea8793782adeac449f2f40abc7c26938ead";
    let digits: String = manifest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(digits.ends_with(sum), "{digits}");
}

/// A store with only the functions that `kv_store_v1` requires, like one behind a plugin.
#[derive(Debug, Default)]
struct Plain(MemoryStore);

impl Backend for Plain {
    forward!(0: put_chunk, get_chunk, put_manifest, get_manifest, delete_manifest);
}

#[test]
fn a_store_without_an_inventory_cannot_be_listed() {
    let error = Objects::new(Arc::new(Plain::default()), b"ns").unwrap().list().unwrap_err();
    assert!(matches!(error, ObjectError::Store(StoreError::Unsupported { .. })));
}
