//! Agents: processes that hold KV memory and move it.

pub mod data;
