//! The file store among real processes on a real file system.

mod cap;
mod corpus;
mod full;
mod heal;
mod kills;
mod names;
mod processes;
mod read_only;
mod saving;
