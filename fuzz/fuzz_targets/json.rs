#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| transload_sidecar::internal::fuzz::json(data));
