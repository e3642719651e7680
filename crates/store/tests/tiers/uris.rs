//! Stores by their URI.

use transload_store::{Backend, StoreError, UriError, open, open_existing};

use crate::{chunk, name};

fn save(store: &dyn Backend, n: u64) {
    let (hash, data) = chunk(n);
    store.put_chunk(&hash, &data).unwrap();
    store.put_manifest(&name("m"), hash.as_bytes()).unwrap();
}

#[test]
fn memory_is_one_store_for_each_uri_of_a_process() {
    let store = open("memory://uris").unwrap();
    save(&*store, 0);
    drop(store);
    let again = open_existing("memory://uris/").unwrap();
    assert_eq!(again.get_chunk(&chunk(0).0).unwrap().unwrap(), chunk(0).1);
    let cap = again.inventory().unwrap().usage().unwrap().cap;
    assert_eq!(cap, Some(4 << 30), "unless something else is said");
    assert!(open("memory://others").unwrap().get_chunk(&chunk(0).0).unwrap().is_none());
    let error = open("tier://1GiB=memory://uris").unwrap_err();
    assert!(error.to_string().contains("with a cap of 4294967296 bytes"), "{error}");
    let capped = open("tier://5000B=memory://capped").unwrap();
    let full = capped.put_chunk(&chunk(0).0, &[0; 5000]).unwrap_err();
    assert!(matches!(full, StoreError::Full { cap: 5000, .. }), "{full}");
}

#[test]
fn tiers_survive_the_loss_of_those_above() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    for scheme in ["tier", "tier+back"] {
        let last = place(&format!("{scheme}-last,%2C"));
        let encoded = last.replace(',', "%2C");
        let uri = format!("{scheme}://1MiB=memory://survive,64MiB=file://{},file://{encoded}", place(scheme));
        save(&*open(&uri).unwrap(), 7);
        std::fs::remove_dir_all(place(scheme)).unwrap();
        // A comma is no comma in a URI of its own.
        let decoded = format!("file://{}", encoded.replace("%2C", ","));
        let left = open_existing(&decoded).unwrap();
        assert_eq!(left.get_manifest(&name("m")).unwrap().unwrap(), chunk(7).0.as_bytes());
        let store = open(&uri).unwrap();
        assert_eq!(store.get_manifest(&name("m")).unwrap().unwrap(), chunk(7).0.as_bytes());
        assert_eq!(store.get_chunk(&chunk(7).0).unwrap().unwrap(), chunk(7).1);
        assert_eq!(store.tiers().len(), 3);
    }
}

#[test]
fn looking_makes_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name).display().to_string());
    let uri = format!("tier://memory://look,file://{one},file://{two}");
    let error = open_existing(&uri).unwrap_err();
    assert!(matches!(error, StoreError::NotThere { .. }), "{error}");
    save(&*open(&format!("file://{two}")).unwrap(), 1);
    let store = open_existing(&uri).unwrap();
    assert_eq!(store.tiers().len(), 2);
    let usage = store.inventory().unwrap().usage().unwrap();
    assert_eq!((usage.manifests, usage.chunks), (1, 1));
    assert!(!std::fs::exists(&one).unwrap());
    // The last tier says what there is, and where copies are made later, so does the first.
    for uri in [format!("tier://file://{two},file://{one}"), format!("tier+back://file://{one},file://{two}")] {
        let error = open_existing(&uri).unwrap_err();
        assert!(matches!(error, StoreError::NotThere { .. }), "{error}");
    }
}

#[test]
fn what_is_wrong_in_a_part_is_told_without_its_password() {
    let error = open("tier://memory://,redis://:hunter2@host").unwrap_err();
    assert!(matches!(error, StoreError::Uri(UriError::Secret)), "{error}");
    for (uri, told) in [
        ("tier://memory://,nobody://x", "`nobody` is not a built-in scheme"),
        ("tier://memory://,file://relative", "file:///absolute/path"),
        ("tier://memory://,tier://memory://", "tiers in it"),
        ("tier://", "names no store"),
    ] {
        let error = open(uri).unwrap_err().to_string();
        assert!(error.contains(told), "{uri}: {error}");
    }
}
