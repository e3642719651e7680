//! What comes from a peer: control frames, and the heads of data streams.

#![no_main]

#[path = "../checks/protocol.rs"]
mod protocol;

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::frame(data));
