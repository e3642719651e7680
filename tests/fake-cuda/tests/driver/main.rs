//! Tests that the fake driver behaves like the real one. Each test runs in its own process, which loads the fake by its
//! path.
#![cfg(target_os = "linux")]

mod faults;
mod kernels;
mod memory;
mod order;
mod program;
mod shared;
