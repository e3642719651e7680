//! The files of a file store: packs and manifests.

#![no_main]

#[path = "../checks/file_store.rs"]
mod file_store;

libfuzzer_sys::fuzz_target!(|data: &[u8]| file_store::check(data));
