//! The file store among real processes on a real file system.

mod cap;
mod kills;
mod names;
mod processes;
mod saving;
