//! Deployment documents (`transload.deployment/1`): the text form of one side.
//!
//! Reading has two steps. A [`Value`] (any TOML or JSON) becomes a [`Document`] with typed fields, and that becomes a
//! checked [`Deployment`](crate::deployment::Deployment). Both steps collect all faults, so one report has them all.
//!
//! The fields that the first step reads, with types, bounds and defaults, also form the documents' [JSON
//! Schema](json_schema).

mod fault;
mod field;
mod kinds;
mod near;
mod read;
mod reader;
mod schema;
#[cfg(feature = "text")]
mod text;
mod value;
mod write;

use serde::{Deserialize, Serialize};

pub(crate) use fault::Report;
pub use fault::{Fault, Faults};
pub(crate) use near::nearest;
pub(crate) use read::parse_order;
pub use schema::json_schema;
#[cfg(feature = "text")]
pub use text::{Located, ParseError, Syntax, SyntaxError, parse};
pub use value::Value;

use crate::placement::Allocation;
use crate::spec::Spec;

/// The name of the schema, which every document contains.
pub const SCHEMA: &str = "transload.deployment/1";

/// A typed deployment document that is not checked yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The side's name, for display.
    pub name: String,
    /// The model's name, for display.
    pub model: Option<String>,
    /// The number of tensor-parallel ranks.
    pub tp: u64,
    /// The number of pipeline stages.
    pub pp: u64,
    /// The number of ranks that the tokens of a sequence are dealt out to (decode context parallelism); 1 for none.
    pub dcp: u64,
    /// The number of consecutive tokens that each of these ranks gets in its turn.
    pub interleave: u64,
    /// The layers of the whole model. The default is the highest layer id + 1.
    pub num_layers: Option<u64>,
    /// The layers of each pipeline stage. The default is vLLM's split.
    pub pp_layers: Option<Vec<u64>>,
    /// The groups.
    pub groups: Vec<GroupDocument>,
}

/// A group of a [`Document`], with inherited values filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDocument {
    /// The name by which groups of the two sides are matched.
    pub name: String,
    /// Global layer ids, as ranges and commas: `0-79`, `0,4,8-11`.
    pub layers: String,
    /// Tokens per block.
    pub block_size: u64,
    /// Blocks on every rank.
    pub num_blocks: u64,
    /// Whether tokens are dealt out to ranks if the deployment has several for that. Recurrent state never is.
    pub dealt: bool,
    /// The physical order. The default is that of the spec's kind.
    pub order: Option<String>,
    /// Whether there is one allocation, or one for each layer.
    pub allocation: Allocation,
    /// The offset in bytes of the group in its allocation.
    pub offset: u64,
    /// The distance in bytes from block to block, if it differs from the order's.
    pub block_stride: Option<u64>,
    /// The distance in bytes from layer to layer, if it differs from the order's.
    pub layer_stride: Option<u64>,
    /// Offsets and strides that differ between pipeline stages: an entry for each stage, or none if all are alike.
    pub stages: Vec<StageDocument>,
    /// The specs, whose states lie one after another in the page of a block.
    pub specs: Vec<Spec>,
    /// Whether its layers draft tokens that the model then checks. Then the other side need not have the group.
    pub draft: bool,
}

impl GroupDocument {
    /// Tells whether the group holds recurrent state: one state for the whole sequence, in the first block.
    pub fn is_recurrent(&self) -> bool {
        self.specs.iter().all(Spec::is_recurrent)
    }

    /// Tells whether a deployment with several ranks for the tokens of a sequence deals those of the group out to them.
    pub fn is_dealt(&self) -> bool {
        self.dealt && !self.is_recurrent()
    }

    /// Returns the tokens of an entry of the block table, which are those of a block on each of `dcp` ranks.
    pub fn entry_tokens(&self, dcp: u64) -> u64 {
        self.block_size.saturating_mul(if self.is_dealt() { dcp } else { 1 })
    }

    /// Tells whether an order can be chosen for the group. Recurrent state, pages of several specs, and caches whose
    /// scales follow the data of a block have fixed orders.
    pub fn takes_orders(&self) -> bool {
        matches!(&self.specs[..], [Spec::Attention(_) | Spec::Mla(_) | Spec::Opaque(_)])
    }

    /// Lets strides follow from the order, on all stages. They fit only the sizes and the order that they were given for.
    pub fn drop_strides(&mut self) {
        (self.block_stride, self.layer_stride) = (None, None);
        self.stages.clear();
    }
}

/// The location of a group on one pipeline stage. What is `None` is that of the [`GroupDocument`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StageDocument {
    /// The offset in bytes of the group in its allocation.
    pub offset: Option<u64>,
    /// The distance in bytes from block to block.
    pub block_stride: Option<u64>,
    /// The distance in bytes from layer to layer.
    pub layer_stride: Option<u64>,
}

/// The fields from which a [`GroupDocument`]'s values come, so that each fault is reported once, at the right field.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// The group's index in the original text.
    pub(crate) position: usize,
    /// Whether any of its values, or one that it inherits, is faulty and has been replaced by a placeholder.
    pub(crate) faulty: bool,
    pub(crate) inherits_block_size: bool,
    pub(crate) inherits_num_blocks: bool,
    pub(crate) inherits_order: bool,
}
