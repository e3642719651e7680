//! A model's `config.json`, all the way to a deployment that serves it.

#![no_main]

#[path = "../checks/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::check(data));
