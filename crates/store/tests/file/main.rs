//! The file store among real processes on a real file system.

mod cap;
mod corpus;
mod kills;
mod names;
mod processes;
mod saving;
