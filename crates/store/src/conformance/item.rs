//! What one item of the kit is.

use std::fmt;

use super::context::Context;
use super::outcome::Outcome;

/// One thing that is checked.
#[derive(Debug)]
#[non_exhaustive]
pub struct Item {
    /// Its name: `manifest-atomic`.
    pub name: &'static str,
    /// What it asks for.
    pub asks: &'static str,
    /// Where that comes from.
    pub source: Source,
    /// Whether it needs a library: it looks at what only C sees.
    pub border: bool,
    /// Whether it needs processes of its own: it looks at what is left when one is killed. Only
    /// [`check_in_children`](super::check_in_children) runs it.
    pub processes: bool,
    pub(super) run: fn(&Context<'_>) -> Outcome,
}

/// Where the demand of an item comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// `kv_store_v1` asks for it, so it has to be so.
    Contract,
    /// The contract is silent; the backends of this crate do it, and consumers are better off with it.
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

/// An item that asks for what the contract says.
pub(super) const fn must(name: &'static str, asks: &'static str, run: fn(&Context<'_>) -> Outcome) -> Item {
    Item { name, asks, source: Source::Contract, border: false, processes: false, run }
}

/// An item that asks for what our backends do where the contract is silent.
pub(super) const fn ours(name: &'static str, asks: &'static str, run: fn(&Context<'_>) -> Outcome) -> Item {
    Item { source: Source::Ours, ..must(name, asks, run) }
}

/// The same, at the C border.
pub(super) const fn at_border(item: Item) -> Item {
    Item { border: true, ..item }
}

/// Marks an item that needs processes of its own.
pub(super) const fn in_processes(item: Item) -> Item {
    Item { processes: true, ..item }
}
