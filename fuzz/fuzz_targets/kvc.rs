//! KVC files, in which erllama keeps caches on disk.

#![no_main]

#[path = "../checks/kvc.rs"]
mod kvc;

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvc::check(data));
