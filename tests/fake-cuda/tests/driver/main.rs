//! The fake driver does what a driver does. Each test is a process of its own, which loads it by its path.
#![cfg(target_os = "linux")]

mod faults;
mod kernels;
mod memory;
mod order;
mod program;
mod shared;
