//! Manifests of objects, which come from stores.

#![no_main]

#[path = "../checks/objects_record.rs"]
mod objects_record;

libfuzzer_sys::fuzz_target!(|data: &[u8]| objects_record::check(data));
