//! A CUDA driver for tests, where there is no GPU: devices are host memory, streams are threads, and the one kernel
//! of Transload runs as C. Errors are a driver's, and more come on command (`faults`).
//!
//! It is stricter than a GPU where that finds bugs: device addresses fault in host code, each operation waits for a
//! random time before it starts, and nothing is done earlier than necessary.
//!
//! The environment configures it: `FAKE_CUDA_DEVICES` (1), `FAKE_CUDA_SEED` (0) of everything random,
//! `FAKE_CUDA_DELAY_US` (200), the longest delay before an operation, and `FAKE_CUDA_FAIL=FUNCTION:NTH:CODE,...`. With
//! `FAKE_CUDA_QUEUES=N` and `FAKE_CUDA_ALLOC_WAITS=1` work waits for other work as it may on a GPU (`settings`). Tests
//! look up `fake_cuda_fail`, `fake_cuda_fail_always`, `fake_cuda_calls`, `fake_cuda_live`, `fake_cuda_hold`,
//! `fake_cuda_hold_device` and `fake_cuda_hold_stream` for everything else.
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
