//! Proves that a backend keeps the contract of `kv_store_v1`.
//!
//! For a backend in Rust, in one of its own tests:
//!
//! ```
//! use std::sync::Arc;
//! use transload_store::backend::MemoryStore;
//! use transload_store::conformance::{Options, check};
//!
//! let store = MemoryStore::new();
//! let report = check(&|| Ok(Arc::new(store.clone())), &Options::quick());
//! assert!(report.is_clean(), "{report}");
//! ```
//!
//! For a library that nobody here wrote there is `transload store check URI`, which runs each item in a process
//! of its own ([`check_in_children`]): a crash or a hang is then what that item saw, and the others still run.
//!
//! An [`Item`] says what it asks and where that comes from. What the contract asks for fails when it is not so;
//! where the contract is silent, and the item asks for what this crate's backends do, it is a note
//! ([`Verdict::Note`]). What was not there to be tried is skipped, with the reason.
//!
//! The items use hashes and names that no other run has, so a store in use can be checked: only chunks that no
//! manifest refers to stay behind, until the store's next collection. Manifests that could not be removed are
//! told ([`Report::left`]).

mod border;
mod child;
mod children;
mod chunks;
mod context;
mod item;
mod large;
mod ledger;
mod lines;
mod manifests;
mod model;
mod names;
mod options;
mod outcome;
mod outlives;
mod outputs;
mod publish;
mod random;
mod report;
mod run;
mod symbols;
mod threads;

pub use child::{Subject, run_in_child};
pub use children::check_in_children;
pub use context::Open;
pub use item::{Item, Source};
pub use options::Options;
pub use outcome::Verdict;
pub use report::{Finding, Report};
pub use run::{check, check_library, item, items, run_item, run_library_item};
