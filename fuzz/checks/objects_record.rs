//! The fuzz check of the manifests of objects. The test that replays the corpus includes it, too.
//!
//! The first byte chooses the meaning of the rest: a whole manifest, or its body, to which fitting magic and checksum
//! are added.

use std::sync::Arc;

use transload_archive::objects::{Objects, Record, Source, Target};
use transload_store::backend::MemoryStore;
use transload_store::{Backend, ManifestName, Put};

/// The most bytes of an object that is read and put again.
const MOST: u64 = 9 << 20;

/// Checks any bytes; panics only if a check fails.
pub(crate) fn check(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let manifest = match kind % 2 {
        0 => rest.to_vec(),
        _ => sealed(rest),
    };
    // The manifest is stored under the name in its body, if it has one.
    let body = manifest.get(8..).unwrap_or_default();
    let names = postcard::take_from_bytes::<(Vec<u8>, Vec<u8>)>(body);
    let (namespace, key) = names.map_or_else(|_| (vec![1], vec![2]), |(names, _)| names);
    let name = name(&namespace, &key);
    let read = Record::read(&name, &manifest).expect("the name is one of an object");

    let store = Arc::new(MemoryStore::new());
    store.put_manifest(&name, &manifest).expect("memory");
    let Ok(objects) = Objects::new(store.clone(), &namespace) else {
        assert!(read.is_err());
        return;
    };
    let Ok(found) = objects.has(&[&key]) else {
        assert!(read.is_err());
        return;
    };
    let Ok(record) = read else {
        assert_eq!(found, [None]);
        return;
    };
    let info = found[0].as_ref().expect("it can be read");
    assert_eq!((info.bytes, &info.meta), (record.bytes, &record.meta));
    if record.bytes > MOST {
        return;
    }
    // None of its pieces exists in the store.
    let mut bytes = vec![0; record.bytes as usize];
    let mut get = || {
        let mut parts = [(&mut bytes).into()];
        let target = Target { key: &key, parts: &mut parts };
        objects.get(&mut [target]).expect("memory").remove(0)
    };
    assert_eq!(get().is_some(), record.bytes == 0);
    let zeros = vec![0; record.bytes as usize];
    let source = Source { key: &key, meta: &record.meta, parts: &[(&zeros).into()] };
    let put = objects.put(&[source]).expect("memory");
    assert_eq!(put[0] == Put::AlreadyThere, record.bytes == 0);
    let again = get().expect("it was put");
    assert_eq!((again.bytes, again.meta), (record.bytes, record.meta));
}

/// Returns the name of an object's manifest as described in the manual.
fn name(namespace: &[u8], key: &[u8]) -> ManifestName {
    let mut material = (namespace.len() as u32).to_le_bytes().to_vec();
    material.extend_from_slice(namespace);
    material.extend_from_slice(key);
    let digest = blake3::Hash::from(blake3::derive_key("transload.objects/1 name", &material));
    let of_namespace = &blake3::hash(namespace).to_hex()[..32];
    let name = format!("transload.objects/1/{of_namespace}/{}", digest.to_hex());
    ManifestName::new(name).expect("117 characters of ASCII")
}

fn sealed(body: &[u8]) -> Vec<u8> {
    let mut manifest = b"TLobjs\x01\n".to_vec();
    manifest.extend(body);
    let sum = blake3::hash(&manifest);
    manifest.extend(sum.as_bytes());
    manifest
}
