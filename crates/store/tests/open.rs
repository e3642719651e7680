//! Tests of the way from a URI to a backend.

use transload_store::{StoreError, open};

fn refusal(uri: &str) -> String {
    open(uri).expect_err("it is refused").to_string()
}

#[cfg(feature = "file")]
#[test]
fn a_folder_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("file://{}/kv", dir.path().display());
    let name = "m".parse().unwrap();
    open(&uri).unwrap().put_manifest(&name, b"kept").unwrap();
    let again = open(&format!("{uri}/")).unwrap();
    assert_eq!(again.get_manifest(&name).unwrap().unwrap(), "kept");
    assert!(again.inventory().is_some());
}

#[test]
fn a_scheme_of_nobody_is_named_with_its_library() {
    let why = refusal("nonsense://x");
    assert!(why.contains("libkv_store_nonsense."), "{why}");
    assert!(why.contains("KV_STORE_LIBRARY_PATH"), "{why}");
    assert!(matches!(open("/var/kv"), Err(StoreError::Uri(_))));
}

#[cfg(feature = "redis")]
#[test]
fn a_server_that_is_not_there_is_an_error() {
    // Nothing listens on port 1.
    let why = refusal("redis://127.0.0.1:1/0");
    assert!(why.contains("127.0.0.1"), "{why}");
}
