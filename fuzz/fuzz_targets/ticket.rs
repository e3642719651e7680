//! Tickets, as texts and as claims sealed with the right key.

#![no_main]

#[path = "../checks/ticket.rs"]
mod ticket;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ticket::check(data));
