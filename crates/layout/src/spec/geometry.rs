//! The one form that every kind of spec lowers to.

use smallvec::SmallVec;

use crate::partition::{Partition, Replication};

/// Components of a spec, and how they share the content axis `C`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// What one slot of a block stands for.
    pub states: States,
    /// Bytes of one element; 1 where only bytes can be told apart.
    pub element_bytes: u64,
    /// The components, in the order in which they follow one another in memory.
    pub components: SmallVec<[Component; 4]>,
    /// How they share a state's content.
    pub arrangement: Arrangement,
    /// Whether in a block all of one component lie before all of the next unless an order says
    /// otherwise (data, then scales).
    pub components_apart: bool,
}

/// What one slot of a block stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum States {
    /// This many tokens.
    PerTokens(u64),
    /// The whole sequence so far: recurrent caches have one state, in the first block.
    Sequence,
}

/// A part of a spec that is sliced by its own rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Component {
    /// Its name in plans: `k`, `v`, `latent`, `x`, `B`, `ssm` …
    pub name: &'static str,
    /// The field of the document that says how many units it has.
    pub field: &'static str,
    /// Its units over TP ranks.
    pub partition: Partition,
    /// Extents of one unit's content axes, in elements.
    pub content: SmallVec<[u64; 2]>,
}

impl Component {
    /// A component of `units` (the document's `field`) that may be replicated.
    pub(super) fn new(name: &'static str, (field, units): (&'static str, u64), content: &[u64]) -> Self {
        Self { name, field, partition: Partition::new(units, Replication::Any), content: content.into() }
    }
}

/// How the components of a spec share the axes `H` and `C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// `H` are the units; `C` is each component's content of that unit, one after another.
    HeadsFirst,
    /// `H` is 1; `C` is `[channels, taps]`: all units of all components along one channel axis. A
    /// component's content is `[channels per unit, taps]`.
    ChannelsFirst,
    /// The same with `C` as `[taps, channels]`.
    TapsFirst,
}
