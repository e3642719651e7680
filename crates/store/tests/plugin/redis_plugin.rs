//! The redis plugin, driven like the others, on a real server.

use std::path::PathBuf;

use transload_test_stores::redis::Server;

use crate::build::plugin;
use crate::check::check;
use crate::consumer::{drives, drives_without_leaks, exports};

fn redis_plugin() -> PathBuf {
    plugin(&["-p", "transload-kv-store-redis"], "libkv_store_redis.so")
}

#[test]
#[cfg(target_os = "linux")]
fn it_stays_loaded() {
    crate::consumer::stays_loaded(&redis_plugin());
}

#[test]
fn it_exports_one_symbol() {
    exports(&redis_plugin());
}

#[test]
fn c_drives_it() {
    let library = redis_plugin();
    let Some(server) = Server::start(&[]) else {
        return;
    };
    drives(&library, &server.uri("/0/plain"), &[], 2);
    drives_without_leaks(&library, &server.uri("/1/valgrind"), &[]);
}

#[test]
fn it_keeps_the_contract() {
    let library = redis_plugin();
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let report = check(&library, &server.uri("/0/check"));
    assert!(report.is_clean(), "{report}");
}
