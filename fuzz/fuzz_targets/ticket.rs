//! Tickets: as texts, and as claims that were sealed with the right key.

#![no_main]

#[path = "../checks/protocol.rs"]
mod protocol;

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::ticket(data));
