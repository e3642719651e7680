//! A checked deployment: one side of a transfer, with the place of every byte on every rank.

mod builder;
mod check;
mod layers;

use std::fmt;
use std::ops::Range;

pub use builder::{DeploymentBuilder, GroupBuilder};
pub use layers::LayerSet;
use serde::{Deserialize, Serialize};

use crate::document::{Document, Faults, Origin, Report, Value};
use crate::order::Order;
use crate::placement::{Allocation, Placement};
use crate::spec::Spec;
use crate::view::ComponentView;

/// The most ranks (`tp * pp`) a deployment may have.
///
/// Large enough for any machine there is, small enough that a document cannot make us allocate much.
pub(crate) const MAX_RANKS: u64 = 4096;

/// The most groups a deployment may have; real ones have up to about five.
pub(crate) const MAX_GROUPS: usize = 64;

/// The most specs of a group. Real pages have two or three; plans count components in 64 bits.
pub(crate) const MAX_SPECS: usize = 16;

/// The most layers a model may have. Layer slots are the upper 20 bits of an address.
pub const MAX_LAYERS: u64 = 65_536;

/// The largest number that a size field may have (2^40); placement checks their products.
pub(crate) const MAX_SIZE: u64 = 1 << 40;

/// The most blocks that a rank may have: a block table holds 32 bits for each.
pub(crate) const MAX_BLOCKS: u64 = u32::MAX as u64;

/// A rank of a deployment: `pp_rank * tp + tp_rank`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One side of a transfer, checked: every size fits, every order suits its spec, no two positions
/// share bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    document: Document,
    tp: u32,
    /// The global layers of each pipeline stage.
    stages: Vec<Range<u32>>,
    groups: Vec<Group>,
}

/// Layers with the same specs and the same block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: String,
    layers: LayerSet,
    block_size: u64,
    num_blocks: u32,
    order: Option<Order>,
    allocation: Allocation,
    specs: Vec<Spec>,
    tp: u32,
    /// For each pipeline stage, which of `layers` (by index) it holds.
    stages: Vec<Stage>,
    /// Where they lie: stages with equally many layers share one.
    placements: Vec<Placement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stage {
    layers: Range<usize>,
    /// Index into the group's placements.
    placement: usize,
}

impl Deployment {
    /// Reads and checks a document.
    ///
    /// # Errors
    /// All faults of the document, each with its key path.
    pub fn from_value(value: &Value) -> Result<Self, Faults> {
        let mut report = Report::default();
        let checked = Document::read(value, &mut report)
            .and_then(|(document, origins)| check::check(document, &origins, &mut report));
        report.unless(checked)
    }

    /// Checks a document whose fields are typed already.
    ///
    /// # Errors
    /// All faults of the document, each with its key path.
    pub fn from_document(document: Document) -> Result<Self, Faults> {
        let mut report = Report::default();
        let origins = (0..document.groups.len()).map(|position| Origin { position, ..Origin::default() });
        let origins: Vec<Origin> = origins.collect();
        let checked = check::check(document, &origins, &mut report);
        report.unless(checked)
    }

    /// The document that it was made from, defaults filled in.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// The side's name, for people.
    pub fn name(&self) -> &str {
        &self.document.name
    }

    /// Ranks of tensor parallelism.
    pub fn tp(&self) -> u32 {
        self.tp
    }

    /// Stages of pipeline parallelism.
    pub fn pp(&self) -> u32 {
        self.stages.len() as u32
    }

    /// All ranks, ascending.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.tp * self.pp()).map(Rank)
    }

    /// The TP rank and the pipeline stage of a rank.
    pub fn split_rank(&self, rank: Rank) -> (u32, u32) {
        (rank.0 % self.tp, rank.0 / self.tp)
    }

    /// The global layers that a pipeline stage holds.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn stage_layers(&self, stage: u32) -> Range<u32> {
        self.stages[stage as usize].clone()
    }

    /// The pipeline stages that hold any of these global layers.
    pub fn stages_of(&self, layers: &Range<u32>) -> Range<u32> {
        let before = self.stages.partition_point(|stage| stage.end <= layers.start);
        let until = self.stages.partition_point(|stage| stage.start < layers.end);
        before as u32..until.max(before) as u32
    }

    /// The groups, as the document lists them.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The group of this name, and its index.
    pub fn group(&self, name: &str) -> Option<(usize, &Group)> {
        let mut groups = self.groups.iter().enumerate();
        groups.find(|(_, group)| group.name == name)
    }
}

impl Group {
    /// The name by which the two sides' groups are matched.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All its layers, on all pipeline stages.
    pub fn layers(&self) -> &LayerSet {
        &self.layers
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Blocks on every rank.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// The order that was given, if one was.
    pub fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// The order that it lies in: the one given, or the default of its kind. `LB` for pages of several
    /// specs, inside of which the document's sequence of specs decides.
    pub fn physical_order(&self) -> Order {
        match (&self.order, &self.specs[..]) {
            (Some(order), _) => order.clone(),
            (None, [spec]) => Order::of_kind(&spec.geometry()),
            (None, _) => Order::pages(),
        }
    }

    /// One allocation, or one for each layer.
    pub fn allocation(&self) -> Allocation {
        self.allocation
    }

    /// The specs whose states a block's page holds one after another.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// Whether it holds recurrent state: one state for the whole sequence, in the first block.
    pub fn is_recurrent(&self) -> bool {
        self.specs.iter().all(Spec::is_recurrent)
    }

    /// Which of its [`layers`](Self::layers), by index, a pipeline stage holds; they are its layer
    /// slots 0, 1, … there.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn stage_slots(&self, stage: u32) -> Range<usize> {
        self.stages[stage as usize].layers.clone()
    }

    /// Where the group lies on each rank of a pipeline stage.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn placement(&self, stage: u32) -> &Placement {
        &self.placements[self.stages[stage as usize].placement]
    }

    /// The views of all components on one rank, in an order that every peer derives alike: by spec,
    /// then by component.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn views(&self, tp_rank: u32, stage: u32) -> impl Iterator<Item = ComponentView> + '_ {
        assert!(tp_rank < self.tp, "TP rank {tp_rank} of {}", self.tp);
        let placed = self.placement(stage).views.iter();
        placed.map(move |view| {
            let mut view = view.clone();
            let count = view.units.end;
            let geometry = self.specs[view.spec].geometry();
            let units = geometry.components[view.component].partition.units();
            // Exact when tp divides the units; the shared unit when the units divide tp.
            let start = (u128::from(tp_rank) * u128::from(units) / u128::from(self.tp)) as u64;
            view.units = start..start + count;
            view
        })
    }
}
