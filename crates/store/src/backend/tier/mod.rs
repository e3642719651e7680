//! `tier://[CAP=]URI,…`: several stores as one, the fastest first.
//!
//! | file | what |
//! |---|---|
//! | `parts` | the grammar of its URI |
//! | `one` | a tier: its store and its counts |
//! | `read` | going down from tier to tier, and carrying up what was found |
//! | `back` | copies that are made later |
//! | `names` | the names of manifests that only hold chunks, and one change of a manifest at a time |
//! | `inventory` | listing, verifying and collecting all of them |
//!
//! The **authority** is the tier where a put has succeeded: the last one, or, where copies below it are made later, the
//! first that outlives the process.
//!
//! Chunks never change, so any tier answers for them. Manifests do, and other processes change them in the last tier: what
//! that says is true, whatever the tiers above have. These keep **copies** of manifests all the same, since a store such as
//! `file` publishes chunks with a manifest and collects what no manifest refers to. Copies have names of their own, and
//! nobody reads them.
//!
//! Where copies below are made later, a manifest of the authority is **pending** until all tiers below have it. A pending
//! one is what was put last, and is read before the last tier is asked. Afterwards it becomes a copy, so that a restart can
//! tell the two apart.

mod back;
mod inventory;
mod names;
mod one;
pub(crate) mod parts;
mod read;
mod store;

pub use one::{Tier, TierStats};
pub use store::{TierStore, Write};
