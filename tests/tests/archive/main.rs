//! The archive: what one deployment saved, another restores, byte for byte.
//!
//! Whatever is restored is compared with what a direct transfer of the same tokens leaves in the same blocks;
//! plans of such transfers are held against a byte-by-byte oracle elsewhere.

mod codecs;
mod corpus;
mod damage;
#[cfg(target_os = "linux")]
mod device;
mod engines;
mod foreign;
mod models;
mod on_disk;
mod pairs;
mod prefixes;
mod snapshots;
mod trips;
