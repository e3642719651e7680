//! A CUDA driver for tests, where there is no GPU: devices are host memory, streams are threads, and the one kernel of
//! Transload runs as C. Errors are a driver's, and more come on command (`faults`).
//!
//! It is stricter than a GPU where that finds bugs: device addresses fault in host code, each operation waits a
//! random while before it starts, and nothing is done earlier than it has to be.
#![cfg(target_os = "linux")]
#![allow(non_snake_case)]

mod api;
mod board;
mod code;
mod copy;
mod entry;
mod faults;
mod kernel;
mod memory;
mod settings;
mod stream;
mod view;
