//! A checked deployment: one side of a transfer, with the location of every byte on every rank.

mod builder;
mod check;
mod layers;

use std::fmt;
use std::ops::Range;

pub use builder::{DeploymentBuilder, GroupBuilder};
pub use layers::LayerSet;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::order::Order;
use crate::placement::{Allocation, Placement};
use crate::spec::Spec;
use crate::view::ComponentView;

/// A rank of a deployment: `pp_rank * tp + tp_rank`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One side of a transfer, checked: every size fits, every order suits its spec, and no two positions share bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    document: Document,
    tp: u32,
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
    dcp: u32,
    interleave: u64,
    order: Option<Order>,
    allocation: Allocation,
    specs: Vec<Spec>,
    draft: bool,
    tp: u32,
    /// For each pipeline stage, the range of `layers` (by index) that it holds.
    stages: Vec<Stage>,
    /// The placements. Stages that are alike share one.
    placements: Vec<Placement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stage {
    layers: Range<usize>,
    placement: usize,
}

impl Deployment {
    /// Returns the document that it was made from, with defaults filled in.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Returns the side's name, for display.
    pub fn name(&self) -> &str {
        &self.document.name
    }

    /// Returns the number of tensor-parallel ranks.
    pub fn tp(&self) -> u32 {
        self.tp
    }

    /// Returns the number of pipeline stages.
    pub fn pp(&self) -> u32 {
        self.stages.len() as u32
    }

    /// Returns all ranks, in ascending order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.tp * self.pp()).map(Rank)
    }

    /// Returns the TP rank and the pipeline stage of a rank.
    pub fn split_rank(&self, rank: Rank) -> (u32, u32) {
        (rank.0 % self.tp, rank.0 / self.tp)
    }

    /// Returns the global layers that a pipeline stage holds.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn stage_layers(&self, stage: u32) -> Range<u32> {
        self.stages[stage as usize].clone()
    }

    /// Returns the pipeline stages that hold any of these global layers.
    pub fn stages_of(&self, layers: &Range<u32>) -> Range<u32> {
        let before = self.stages.partition_point(|stage| stage.end <= layers.start);
        let until = self.stages.partition_point(|stage| stage.start < layers.end);
        before as u32..until.max(before) as u32
    }

    /// Returns the groups, in the document's order.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the index of the group of this name, and the group.
    pub fn group(&self, name: &str) -> Option<(usize, &Group)> {
        let mut groups = self.groups.iter().enumerate();
        groups.find(|(_, group)| group.name == name)
    }
}

impl Group {
    /// Returns the name by which groups of the two sides are matched.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all its layers, on all pipeline stages.
    pub fn layers(&self) -> &LayerSet {
        &self.layers
    }

    /// Returns the tokens of a block on one rank.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Returns the number of ranks that the tokens of a sequence are dealt out to; 1 if each rank has all of them.
    ///
    /// Rank `r` has those of rank `r % dcp`. Of every `dcp * interleave` tokens it has the `interleave` ones from
    /// `(r % dcp) * interleave` on, and keeps them in its blocks one after another.
    pub fn dcp(&self) -> u32 {
        self.dcp
    }

    /// Returns the number of consecutive tokens that a rank gets in its turn. It is the whole block if each rank has all.
    pub fn interleave(&self) -> u64 {
        self.interleave
    }

    /// Returns the tokens of an entry of the block table: those of a block on each rank that they are dealt out to.
    pub fn entry_tokens(&self) -> u64 {
        self.block_size * u64::from(self.dcp)
    }

    /// Returns the number of blocks on every rank.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Returns the order in the document, if there is one.
    pub fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// Returns the physical order: that of the document, or the default of the group's kind. For pages of several specs
    /// it is `LB`, inside of which the specs lie in the document's sequence.
    pub fn physical_order(&self) -> Order {
        match (&self.order, &self.specs[..]) {
            (Some(order), _) => order.clone(),
            (None, [spec]) => Order::of_kind(&spec.geometry()),
            (None, _) => Order::pages(),
        }
    }

    /// Returns whether there is one allocation, or one for each layer.
    pub fn allocation(&self) -> Allocation {
        self.allocation
    }

    /// Returns the specs, whose states lie one after another in the page of a block.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// Tells whether its layers draft tokens that the model then checks. Then the other side need not have the group.
    pub fn is_draft(&self) -> bool {
        self.draft
    }

    /// Tells whether the group holds recurrent state: one state for the whole sequence, in the first block.
    pub fn is_recurrent(&self) -> bool {
        self.specs.iter().all(Spec::is_recurrent)
    }

    /// Returns which of its [`layers`](Self::layers), by index, a pipeline stage holds. They are the layer slots 0, 1,
    /// … of that stage.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn stage_slots(&self, stage: u32) -> Range<usize> {
        self.stages[stage as usize].layers.clone()
    }

    /// Returns the group's placement on each rank of a pipeline stage.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn placement(&self, stage: u32) -> &Placement {
        &self.placements[self.stages[stage as usize].placement]
    }

    /// Returns the views of all components on one rank, ordered by spec and then by component, so that every peer
    /// derives the same order.
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
            // This is exact if tp divides the units. If the units divide tp, it is the shared unit.
            let start = (u128::from(tp_rank) * u128::from(units) / u128::from(self.tp)) as u64;
            view.units = start..start + count;
            view
        })
    }
}
