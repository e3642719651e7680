//! `file://`: a folder of any POSIX file system, crash-safe and deduplicating.
//!
//! Chunks that are put on a handle go into one file, a *pack*, which is flushed and published when a manifest
//! is put; so a save costs about four flushes, whatever the number of its chunks. What lies where, and why in
//! this order, is told in the manual's page on the file store.
//!
//! | file | what |
//! |---|---|
//! | `root` | finding and making a store |
//! | `pending`, `publish` | from a put to what is durable |
//! | `index` | which chunk lies where; reading |
//! | `place` | where a manifest lies, and how it goes |
//! | `recover` | finishing what others began |
//! | `space`, `collect` | the size cap; what goes, and when |
//! | `locks` | who excludes whom, in all processes |
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
