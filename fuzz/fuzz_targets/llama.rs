//! States and session files of llama.cpp, which come from files and engines.

#![no_main]

#[path = "../checks/llama.rs"]
mod llama;

libfuzzer_sys::fuzz_target!(|data: &[u8]| llama::check(data));
