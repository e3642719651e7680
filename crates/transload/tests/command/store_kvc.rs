//! `transload store kvc`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ran, root, transload};
use serde_json::{Value, json};

/// Returns the folder of the vectors made by erllama.
fn vectors() -> PathBuf {
    root().join("crates/archive/tests/kvc/vectors")
}

fn kvc(action: &str, file: &Path, more: &[&str]) -> Ran {
    let file = file.to_str().expect("UTF-8");
    transload(&[&["store", "kvc", action, file, "--format", "json"], more].concat())
}

#[test]
fn kvc_tells_what_erllama_reads_and_what_it_refuses() {
    for kind in ["golden", "corrupt"] {
        let index = fs::read_to_string(vectors().join(format!("{kind}.json"))).expect("an index");
        let index: Value = serde_json::from_str(&index).expect("JSON");
        for said in index["files"].as_array().expect("a list") {
            let file = vectors().join(kind).join(said["file"].as_str().expect("a name"));
            if !file.exists() {
                // The index has one file that is too long to be in the repository.
                assert!(said.get("tokens_count").is_some());
                continue;
            }
            let read = match said.get("info") {
                Some(but) => {
                    let mut info = index["base"].clone();
                    let fields = info.as_object_mut().expect("an object");
                    fields.extend(but.as_object().expect("an object").clone());
                    json!({"ok": true, "info": info})
                }
                None => {
                    let error = said.get("error").unwrap_or(&said["parse_meta"]["tag"]);
                    json!({"ok": false, "error": error})
                }
            };
            let ran = kvc("inspect", &file, &[]);
            assert_eq!(ran.json(), read, "{}", file.display());
            assert_eq!(ran.code, Some(i32::from(read["ok"] == false)));

            let key = said["key"].as_str().expect("a key");
            let verified = match said.get("parse") {
                Some(error) => json!({"ok": false, "error": error["tag"]}),
                None => read,
            };
            let ran = kvc("verify", &file, &["--key", key]);
            assert_eq!(ran.json(), verified, "{}", file.display());
            assert_eq!(ran.code, Some(i32::from(verified["ok"] == false)));
        }
    }
}

#[test]
fn kvc_checks_the_key_if_there_is_one() {
    let file = vectors().join("golden/00_base_cold.kvc");
    assert_eq!(kvc("verify", &file, &[]).code, Some(0));
    let ran = kvc("verify", &file, &["--key", &"0".repeat(64)]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json(), json!({"ok": false, "error": "key_mismatch"}));
    assert!(ran.told().contains("60c36f2f"), "{}", ran.stderr);
    let ran = kvc("verify", &file, &["--key", "60c3"]);
    assert_eq!(ran.code, Some(2));
    let ran = kvc("inspect", Path::new("/nonexistent.kvc"), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    let dir = tempfile::tempdir().expect("a folder");
    let pipe = dir.path().join("pipe.kvc");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    // The command neither waits for a writer of the pipe nor reads without end.
    for path in [&pipe, Path::new("/dev/zero"), dir.path()] {
        for action in ["inspect", "verify"] {
            let ran = kvc(action, path, &[]);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
            let told = ran.told();
            assert!(told.contains("it is not a regular file"), "{told}");
        }
    }
}
