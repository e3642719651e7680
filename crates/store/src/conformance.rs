//! Proves that a backend keeps the contract of `kv_store_v1`.
//!
//! To check a backend in Rust, use it in one of its own tests:
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
//! To check a library of another vendor, run `transload store check URI`, which runs each item in a process of its own
//! ([`check_in_children`]). If the library crashes or hangs, only that item fails.
//!
//! An [`Item`] states a requirement and its origin. If the contract requires it, a violation is a failure. If the
//! contract is silent and only this crate's backends do it, a violation is a note ([`Verdict::Note`]). What could not
//! be tried is skipped, with the reason.
//!
//! Each run uses hashes and names of its own, so a store in use can be checked. Only chunks without references are
//! left, until the store's next collection. [`Report::left`] lists manifests that could not be removed.

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
