//! States and session files of llama.cpp: what files and engines hand over.

#![no_main]

#[path = "../checks/llama.rs"]
mod llama;

libfuzzer_sys::fuzz_target!(|data: &[u8]| llama::check(data));
