//! Records of an archive: what stores and other processes hand over.

#![no_main]

#[path = "../checks/archive.rs"]
mod archive;

libfuzzer_sys::fuzz_target!(|data: &[u8]| archive::check(data));
