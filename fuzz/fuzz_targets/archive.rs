//! Records of an archive, which come from stores and other processes.

#![no_main]

#[path = "../checks/archive.rs"]
mod archive;

libfuzzer_sys::fuzz_target!(|data: &[u8]| archive::check(data));
