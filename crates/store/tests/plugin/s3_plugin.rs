//! The s3 plugin, driven like the others, on real servers.

use std::path::PathBuf;

use transload_test_stores::s3::Server;

use crate::build::plugin;
use crate::check::check_in;
use crate::consumer::{drives, drives_without_leaks, exports};

fn s3_plugin() -> PathBuf {
    plugin(&["-p", "transload-kv-store-s3"], "libkv_store_s3.so")
}

#[test]
#[cfg(target_os = "linux")]
fn it_stays_loaded() {
    crate::consumer::stays_loaded(&s3_plugin());
}

#[test]
fn it_exports_one_symbol() {
    exports(&s3_plugin());
}

#[test]
fn c_drives_it() {
    let library = s3_plugin();
    let server = Server::s3s();
    drives(&library, "s3://bucket/plain", &server.environment(), 2);
    let server = Server::s3s();
    drives_without_leaks(&library, "s3://bucket/valgrind", &server.environment());
}

#[test]
fn c_drives_it_on_moto() {
    let library = s3_plugin();
    let Some(server) = Server::moto() else {
        return;
    };
    drives(&library, "s3://bucket/plain", &server.environment(), 2);
}

#[test]
fn it_keeps_the_contract() {
    let library = s3_plugin();
    let server = Server::s3s();
    let report = check_in(&library, "s3://bucket/check", &server.environment());
    assert!(report.is_clean(), "{report}");
}
