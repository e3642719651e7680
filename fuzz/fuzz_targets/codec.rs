//! Encoded keys and values, which come from stores and peers.

#![no_main]

#[path = "../checks/codec.rs"]
mod codec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| codec::check(data));
