//! The common form of all kinds of spec.

use smallvec::SmallVec;

use crate::partition::{Partition, Replication};

/// The components of a spec, and their arrangement on the content axis `C`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// The content of one slot of a block.
    pub states: States,
    /// The bytes of one element; 1 if the content is plain bytes.
    pub element_bytes: u64,
    /// The components, in memory order.
    pub components: SmallVec<[Component; 4]>,
    /// The way in which the components share a state's content.
    pub arrangement: Arrangement,
    /// Whether, by default, all data of one component in a block precede those of the next (data, then scales).
    pub components_apart: bool,
}

/// The content of one slot of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum States {
    /// A state of this many tokens.
    PerTokens(u64),
    /// The state of the whole sequence so far. Recurrent caches have one state, in the first block.
    Sequence,
}

/// A part of a spec that is sliced by its own rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Component {
    /// Its name in plans: `k`, `v`, `latent`, `x`, `B`, `ssm` …
    pub name: &'static str,
    /// The field of the document with its number of units.
    pub field: &'static str,
    /// The partition of its units over TP ranks.
    pub partition: Partition,
    /// Extents of one unit's content axes, in elements.
    pub content: SmallVec<[u64; 2]>,
}

impl Component {
    /// Returns a component of `units` units (from the document's `field`) that may be replicated.
    pub(super) fn new(name: &'static str, (field, units): (&'static str, u64), content: &[u64]) -> Self {
        Self { name, field, partition: Partition::new(units, Replication::Any), content: content.into() }
    }
}

/// The way in which the components of a spec share the axes `H` and `C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// `H` is the units. `C` is each component's content of that unit, one after another.
    HeadsFirst,
    /// `H` is 1. `C` is `[channels, taps]`, with all units of all components along one channel axis. A component's
    /// content is `[channels per unit, taps]`.
    ChannelsFirst,
    /// Like `ChannelsFirst`, but `C` is `[taps, channels]`.
    TapsFirst,
}
