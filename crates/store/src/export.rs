//! From a Rust type to a plugin: the C functions around a backend.
