//! The items of the conformance kit.

use std::fmt;

use super::context::Context;
use super::outcome::Outcome;

/// A requirement, and the code that checks it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Item {
    /// The name: `manifest-atomic`.
    pub name: &'static str,
    /// The requirement.
    pub asks: &'static str,
    /// The origin of the requirement.
    pub source: Source,
    /// Whether it needs a library, because it examines what only C callers see.
    pub border: bool,
    /// Whether it needs processes of its own, because it kills one and examines what is left. Only
    /// [`check_in_children`](super::check_in_children) runs such items.
    pub processes: bool,
    pub(super) run: fn(&Context<'_>) -> Outcome,
}

/// The origin of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The contract `kv_store_v1` requires it.
    Contract,
    /// The contract is silent. The backends of this crate do it, and consumers benefit from it.
    Ours,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contract => "the contract",
            Self::Ours => "our backends; the contract is silent",
        })
    }
}

pub(super) const fn must(name: &'static str, asks: &'static str, run: fn(&Context<'_>) -> Outcome) -> Item {
    Item { name, asks, source: Source::Contract, border: false, processes: false, run }
}

/// Returns an item for what our backends do where the contract is silent.
pub(super) const fn ours(name: &'static str, asks: &'static str, run: fn(&Context<'_>) -> Outcome) -> Item {
    Item { source: Source::Ours, ..must(name, asks, run) }
}

pub(super) const fn at_border(item: Item) -> Item {
    Item { border: true, ..item }
}

pub(super) const fn in_processes(item: Item) -> Item {
    Item { processes: true, ..item }
}
