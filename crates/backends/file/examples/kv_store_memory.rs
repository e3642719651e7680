//! The smallest plugin: `MemoryStore` as `libkv_store_memory.so`.
//!
//! ```text
//! cargo build --example kv_store_memory
//! KV_STORE_LIBRARY_PATH=target/debug/examples transload store check memory://any-name
//! ```
//!
//! A crate of its own needs two lines more, in its `Cargo.toml`: `crate-type = ["cdylib"]`, and a library
//! called `kv_store_<scheme>`.

transload_store::export!(transload_store::backend::MemoryStore);
