//! Agents in one process.

mod codecs;
mod instances;
mod invited;
mod local;
mod memory;
mod pulls;
mod two_sources;
