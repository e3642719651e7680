//! Encoded keys and values: what stores and peers hand over.

#![no_main]

#[path = "../checks/codec.rs"]
mod codec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| codec::check(data));
