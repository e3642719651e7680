//! `transload store llama`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ran, root, transload};
use serde_json::json;

/// Returns a file of 20 tokens saved by llama.cpp of llama-cpp-python 0.3.36.
fn vector() -> PathBuf {
    root().join("crates/archive/tests/llama/vectors/tiny.ggsq")
}

fn inspect(file: &Path, more: &[&str]) -> Ran {
    let file = file.to_str().expect("UTF-8");
    transload(&[&["store", "llama", "inspect", file], more].concat())
}

#[test]
fn inspect_tells_what_llama_cpp_has_saved() {
    let ran = inspect(&vector(), &["--format", "json"]);
    assert_eq!(ran.code, Some(0));
    let mut said = ran.json();
    let tokens = said["info"]["tokens"].take();
    assert_eq!(tokens.as_array().map(Vec::len), Some(20));
    let rows = json!([{"layers": 2, "type": "f16", "row_bytes": 64}]);
    let info = json!({
        "tokens": null, "cells": 20, "positions": [0, 19], "layers": 2, "keys": rows, "values": rows,
        "values_transposed": true, "rest_bytes": 0, "bytes": 5516,
    });
    assert_eq!(said, json!({"schema": "transload.store.llama/1", "ok": true, "info": info}));

    // The file may continue with other caches.
    let dir = tempfile::tempdir().expect("a folder");
    let hybrid = dir.path().join("hybrid.bin");
    let mut bytes = fs::read(vector()).expect("a vector");
    bytes.extend([0; 1000]);
    fs::write(&hybrid, bytes).expect("a file");
    let ran = inspect(&hybrid, &[]);
    assert_eq!(ran.code, Some(0));
    let other = " other caches  1,000 bytes, of windows or recurrent layers\n";
    assert!(ran.stdout.ends_with(other), "{}", ran.stdout);
}

#[test]
fn inspect_refuses_what_is_damaged() {
    let whole = fs::read(vector()).expect("a vector");
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("cut.bin");
    // The cuts are in the head, the tokens, the cells, the keys and the values.
    for (end, said) in [
        (3, "the magic number at byte 0 takes 4 bytes, and 3 are left"),
        (60, "the tokens at byte 12 takes 80 bytes, and 48 are left"),
        (200, "of a cell"),
        (2000, "the rows of a layer at byte"),
        (whole.len() - 1, "the rows of a layer at byte"),
    ] {
        fs::write(&file, &whole[..end]).expect("a file");
        let ran = inspect(&file, &["--format", "json"]);
        assert_eq!(ran.code, Some(1), "{end}");
        assert_eq!(ran.json()["ok"], false);
        let told = ran.told();
        assert!(told.contains(said), "{end}: {told}");
    }
    let mut other = whole;
    other[4] = 4;
    fs::write(&file, &other).expect("a file");
    let ran = inspect(&file, &[]);
    assert_eq!(ran.code, Some(1));
    let told = ran.told();
    assert!(told.contains("version 4, and not with 0x67677371, version 3"), "{told}");
    // Files of `llama_state_save_file` begin with these bytes.
    fs::write(&file, b"nsgg\x0a\0\0\0").expect("a file");
    let told = inspect(&file, &[]).told();
    assert!(told.contains("saves a whole context"), "{told}");
    let ran = inspect(Path::new("/nonexistent.bin"), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert_eq!(inspect(dir.path(), &[]).code, Some(2));
    // This sparse file is longer than the amount that is read at once.
    let holes = fs::File::create(&file).and_then(|file| file.set_len((16 << 30) + 1));
    holes.expect("a file");
    inspect(&file, &[]).refused("file too large");
}
