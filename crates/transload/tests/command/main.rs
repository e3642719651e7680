//! The command `transload`, as a user runs it.

mod book;
mod certs;
mod common;
mod demo;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod gpu;
mod inspect;
mod plan;
mod plan_model;
mod store;
mod store_kvc;
mod store_libraries;
mod store_llama;
mod stores;
mod usage;
