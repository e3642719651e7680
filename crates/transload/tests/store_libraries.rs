//! `transload store` with libraries of others, and `transload store check`.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ran, root, transload};
use serde_json::json;

/// Compiles the guide's plugin as the guide says.
fn list_plugin(folder: &Path) -> PathBuf {
    let library = folder.join("libkv_store_list.so");
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .arg("-I")
        .arg(root().join("crates/store/include"))
        .arg("-o")
        .arg(&library)
        .arg(root().join("docs/examples/store/kv_store_list.c"))
        .status()
        .expect("a C compiler");
    assert!(status.success());
    library
}

#[test]
fn the_plugin_of_the_guide_keeps_the_contract_but_for_what_it_keeps() {
    let dir = tempfile::tempdir().expect("a folder");
    let library = list_plugin(dir.path());
    let library = library.to_str().expect("UTF-8");
    let ran = transload(&[
        "store",
        "check",
        "list://x",
        "--library",
        library,
        "--quick",
        "--scratch",
        // This time is beyond the range of clocks.
        "--limit",
        "99999999999999d",
        "--format",
        "json",
    ]);
    // Stderr contains the library's messages about wrong calls.
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let json = ran.json();
    assert_eq!(json["schema"], "transload.store.check/1");
    // As the guide says, the plugin keeps everything in memory.
    let items = json["items"].as_array().expect("a list");
    let failed = items.iter().filter(|item| item["verdict"] == "fail");
    let failed: Vec<_> = failed.map(|item| &item["name"]).collect();
    assert_eq!(failed, [&json!("outlives-process")]);
    assert_eq!((&json["ok"], &json["counts"]["fail"]), (&json!(false), &json!(1)));
    // Every item was run. Version 1 has no prefetch.
    let count = |verdict: &str| json["counts"][verdict].as_u64().expect("a number");
    let all = transload::store::conformance::items().count() as u64;
    assert_eq!(count("pass") + count("fail") + count("note") + count("skipped"), all);
    assert!(count("pass") > 30, "{json}");
    assert!(count("skipped") <= 1, "{json}");
}

/// Items that check only libraries fail without one, since they were not run.
#[test]
fn an_item_that_needs_a_library_fails_without_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = format!("file://{}", dir.path().join("kv").display());
    for more in [&[][..], &["--item", "manifest-replace"]] {
        let args = ["store", "check", &uri, "--item", "prefetch-bounds"];
        let ran = transload(&[&args[..], more].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
        assert!(ran.told().contains("libraries alone"), "{}", ran.stderr);
    }
}

/// A crash fails the item in which it happens; the others still run.
#[test]
fn a_library_that_crashes_fails_its_item_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let source = fs::read_to_string(root().join("docs/examples/store/kv_store_list.c"));
    let source = source.expect("a file");
    let broken = source.replace("return get(1, name, strlen(name), out, out_len);", "abort();");
    assert_ne!(source, broken);
    let file = dir.path().join("broken.c");
    fs::write(&file, broken).expect("written");
    let library = dir.path().join("libkv_store_broken.so");
    let status = Command::new("cc")
        .args(["-w", "-shared", "-fPIC", "-pthread", "-I"])
        .arg(root().join("crates/store/include"))
        .arg("-o")
        .args([&library, &file])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    // Here the library is found by its scheme, in a folder of the search path.
    let output = common::command()
        .env("KV_STORE_LIBRARY_PATH", dir.path())
        .args(["store", "check", "broken://x", "--quick", "--format", "json"])
        .args(["--item", "manifest-replace", "--item", "chunk-again"])
        .output();
    let ran = Ran::new(output.expect("it starts"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let json = ran.json();
    let items = json["items"].as_array().expect("a list");
    let of = |name: &str| items.iter().find(|item| item["name"] == name).expect("it");
    assert_eq!(of("manifest-replace")["verdict"], "fail");
    let seen = of("manifest-replace")["seen"].as_str().expect("a text");
    assert!(seen.contains("SIGABRT"), "{seen}");
    assert_eq!(of("chunk-again")["verdict"], "pass");
}

/// The checking process does not load the library, since a crash would end the whole check.
#[test]
fn a_library_that_crashes_when_it_is_loaded_fails_its_check() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("crash.c");
    let source = "#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }\n";
    fs::write(&file, source).expect("written");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&dir.path().join("libkv_store_crash.so"), &file])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    // This holds as well if only the system's loader finds it.
    for search in ["KV_STORE_LIBRARY_PATH", "LD_LIBRARY_PATH"] {
        let output = common::command()
            .env_remove("KV_STORE_LIBRARY_PATH")
            .env(search, dir.path())
            .args(["store", "check", "crash://x", "--format", "json"])
            .output();
        let ran = Ran::new(output.expect("it starts"));
        assert_eq!(ran.code, Some(1), "{search}: {}", ran.stderr);
        let json = ran.json();
        assert_eq!(json["counts"]["fail"], 1);
        let seen = json["items"][0]["seen"].as_str().expect("a text");
        assert!(seen.contains("SIGABRT"), "{seen}");
    }
}

/// A library that exists but does not load is not reported as missing.
#[test]
#[cfg(target_os = "linux")]
fn a_library_that_does_not_load_says_why() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("needs.c");
    fs::write(&file, "int nowhere(void); int x(void) { return nowhere(); }").expect("written");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&dir.path().join("libkv_store_needs.so"), &file])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    let run = |args: &[&str]| {
        let output = common::command()
            .env_remove("KV_STORE_LIBRARY_PATH")
            .env("LD_LIBRARY_PATH", dir.path())
            .args(args)
            .output();
        Ran::new(output.expect("it starts"))
    };
    let ran = run(&["store", "show", "needs://x", "none"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.told().contains("nowhere"), "{}", ran.stderr);
    assert!(!ran.told().contains("there is no"), "{}", ran.stderr);
    // The library exists and is faulty, which the check has to report.
    let ran = run(&["store", "check", "needs://x", "--format", "json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(json["counts"]["fail"], 1);
    let seen = json["items"][0]["seen"].as_str().expect("a text");
    assert!(seen.contains("nowhere"), "{seen}");
    let ran = run(&["store", "check", "nobody://x"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    let told = ran.told();
    assert!(told.contains("there is no libkv_store_nobody.so"), "{told}");
}

#[test]
fn a_library_can_be_shown_but_not_listed() {
    let dir = tempfile::tempdir().expect("a folder");
    list_plugin(dir.path());
    let run = |args: &[&str]| {
        let output = common::command().env("KV_STORE_LIBRARY_PATH", dir.path()).args(args).output();
        Ran::new(output.expect("it starts"))
    };
    for action in ["ls", "verify", "gc"] {
        let ran = run(&["store", action, "list://x"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{action}");
        assert!(ran.told().contains("cannot list what it holds"), "{}", ran.stderr);
    }
    for action in ["show", "rm"] {
        let ran = run(&["store", action, "list://x", "none"]);
        assert_eq!(ran.code, Some(1));
        assert!(ran.told().contains("has no manifest none"), "{}", ran.stderr);
    }
}

#[test]
fn items_that_are_none_are_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = format!("file://{}", dir.path().display());
    let ran = transload(&["store", "check", &uri, "--item", "chunk-agian"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.told().contains("chunk-again"), "{}", ran.stderr);
}
