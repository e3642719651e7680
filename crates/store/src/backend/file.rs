//! `file://`: a store in a folder of any POSIX file system. It survives crashes and stores equal chunks once.
//!
//! Chunks that are put on a handle go into one file, a *pack*, which is flushed and published when a manifest is put.
//! So a save costs about four flushes, whatever the number of its chunks. The manual's page on the file store describes
//! the files and why they are written in this order; `format` describes the bytes.
//!
//! | file | what |
//! |---|---|
//! | `root` | finding and creating a store |
//! | `pending`, `publish` | writing chunks and manifests, and making them durable |
//! | `index` | locating and reading chunks |
//! | `place` | replacing and removing a manifest's file |
//! | `recover` | finishing what dead processes began |
//! | `space`, `collect` | the size cap; collection and eviction |
//! | `locks` | locks between processes |
//! | `inventory` | listing and verifying |
//! | `disk` | the system calls, and the simulated disk of the tests |

mod census;
mod collect;
mod collect_plan;
mod disk;
mod files;
pub(crate) mod format;
mod index;
mod inventory;
mod locks;
mod options;
mod paths;
mod pending;
mod place;
mod publish;
mod recover;
mod root;
mod space;
mod store;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "simulated"))]
pub(crate) use disk::simulated;
pub use options::FileOptions;
pub use store::FileStore;
