//! `transload store` with libraries of others, and `transload store check`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{root, typed, typed_with};
use serde_json::json;

/// Returns a plugin that is compiled from this file.
fn library(folder: &Path, scheme: &str, source: &Path, flags: &[&str]) -> PathBuf {
    let library = folder.join(format!("libkv_store_{scheme}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-pthread", "-I"]).arg(root().join("crates/store/include")).args(flags);
    let status = compiler.arg("-o").args([&*library, source]).status();
    assert!(status.expect("a C compiler").success());
    library
}

/// One of these lines.
fn written(folder: &Path, scheme: &str, source: &str) -> PathBuf {
    let file = folder.join(format!("{scheme}.c"));
    fs::write(&file, source).expect("written");
    library(folder, scheme, &file, &["-w"])
}

/// Compiles the guide's plugin as the guide says.
fn list_plugin(folder: &Path) -> PathBuf {
    let source = root().join("docs/examples/store/kv_store_list.c");
    library(folder, "list", &source, &["-Wall", "-Wextra", "-Werror"])
}

#[test]
fn the_plugin_of_the_guide_keeps_the_contract_but_for_what_it_keeps() {
    let dir = tempfile::tempdir().expect("a folder");
    let library = list_plugin(dir.path());
    // No clock goes so far as the limit.
    let ran = typed(
        dir.path(),
        &format!(
            "store check list://x --library {} --quick --scratch --limit 99999999999999d --format json",
            library.display()
        ),
    );
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
    for more in ["", "--item manifest-replace"] {
        typed(dir.path(), &format!("store check {uri} --item prefetch-bounds {more}"))
            .refused("applies to libraries only");
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
    written(dir.path(), "broken", &broken);
    // Here the library is found by its scheme, in a folder of the search path.
    let items = "--item manifest-replace --item chunk-again";
    let line = format!("store check broken://x --quick --format json {items}");
    let ran = typed_with("KV_STORE_LIBRARY_PATH", dir.path(), &line);
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
    let source = "#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }\n";
    written(dir.path(), "crash", source);
    // This holds as well if only the system's loader finds it.
    for search in ["KV_STORE_LIBRARY_PATH", "LD_LIBRARY_PATH"] {
        let ran = typed_with(search, dir.path(), "store check crash://x --format json");
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
    written(dir.path(), "needs", "int nowhere(void); int x(void) { return nowhere(); }");
    let run = |line| typed_with("LD_LIBRARY_PATH", dir.path(), line);
    let ran = run("store show needs://x none");
    ran.refused("nowhere");
    assert!(!ran.told().contains("there is no"), "{}", ran.stderr);
    // The library exists and is faulty, which the check has to report.
    let ran = run("store check needs://x --format json");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(json["counts"]["fail"], 1);
    let seen = json["items"][0]["seen"].as_str().expect("a text");
    assert!(seen.contains("nowhere"), "{seen}");
    let ran = run("store check nobody://x");
    ran.refused("there is no libkv_store_nobody.so");
}

#[test]
fn a_library_can_be_shown_but_not_listed() {
    let dir = tempfile::tempdir().expect("a folder");
    list_plugin(dir.path());
    let run = |line: &str| typed_with("KV_STORE_LIBRARY_PATH", dir.path(), line);
    for action in ["ls", "verify", "gc"] {
        run(&format!("store {action} list://x")).refused("cannot list its contents");
    }
    for action in ["show", "rm"] {
        run(&format!("store {action} list://x none")).fails("has no manifest none");
    }
}

#[test]
fn items_that_are_none_are_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = format!("file://{}", dir.path().display());
    typed(dir.path(), &format!("store check {uri} --item chunk-agian")).refused("chunk-again");
}
