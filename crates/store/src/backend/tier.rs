//! `tier://[CAP=]URI,…`: several stores combined, fastest first.
//!
//! | file | what |
//! |---|---|
//! | `parts` | the grammar of its URI |
//! | `one`, `stats` | a tier: its store; its statistics |
//! | `read` | reading from tier to tier, and promoting what was found |
//! | `back` | copies that are made in the background |
//! | `names` | the names of copies of manifests, and locks on manifests |
//! | `inventory` | listing, verifying and collecting all of them |
//!
//! The **authority** is the tier where a put counts as successful. That is the last tier, or, with write-back, the
//! first tier that outlives the process.
//!
//! Chunks never change, so any tier answers for them. Manifests change, and other processes change them in the last
//! tier, so that tier is right whatever the tiers above have. The tiers above still keep **copies** of manifests,
//! because a store such as `file` publishes chunks with a manifest and collects chunks without references. Copies have
//! names of their own and are never read.
//!
//! With write-back, a manifest of the authority is **pending** until all tiers below have it. A pending manifest is
//! newer than the one in the last tier, so it is read first. Afterwards it becomes a copy, so that a restart can tell
//! the two apart.

mod back;
mod inventory;
mod names;
mod one;
pub(crate) mod parts;
mod read;
mod stats;
mod store;

pub use one::Tier;
pub use stats::TierStats;
pub use store::{TierStore, Write};
