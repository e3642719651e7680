//! Deployment documents (`transload.deployment/1`): a side as people and tools write it.
//!
//! Reading goes in two steps. A [`Value`] (any TOML or JSON) becomes a [`Document`], whose fields have
//! types; a `Document` becomes a checked [`Deployment`](crate::deployment::Deployment). Both steps note
//! every fault they find, so that one report has them all.
//!
//! What the first step asks for, with types, bounds and defaults, is also the documents'
//! [JSON Schema](json_schema).

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

/// The schema name that a document states.
pub const SCHEMA: &str = "transload.deployment/1";

/// A deployment document with typed fields, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The side's name, for people.
    pub name: String,
    /// The model's name, for people.
    pub model: Option<String>,
    /// Ranks of tensor parallelism.
    pub tp: u64,
    /// Stages of pipeline parallelism.
    pub pp: u64,
    /// Layers of the whole model; default the highest layer id + 1.
    pub num_layers: Option<u64>,
    /// Layers of each pipeline stage; default as vLLM splits them.
    pub pp_layers: Option<Vec<u64>>,
    /// The groups.
    pub groups: Vec<GroupDocument>,
}

/// One group of a [`Document`], with what it inherits from the deployment filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDocument {
    /// The name by which the two sides' groups are matched.
    pub name: String,
    /// Global layer ids, as ranges and commas: `0-79`, `0,4,8-11`.
    pub layers: String,
    /// Tokens per block.
    pub block_size: u64,
    /// Blocks on every rank.
    pub num_blocks: u64,
    /// Physical order; default that of the spec's kind.
    pub order: Option<String>,
    /// One allocation, or one for each layer.
    pub allocation: Allocation,
    /// Bytes from the start of the allocation to the group.
    pub offset: u64,
    /// Bytes from block to block, where it is not what the order gives.
    pub block_stride: Option<u64>,
    /// Bytes from layer to layer, where it is not what the order gives.
    pub layer_stride: Option<u64>,
    /// The specs whose states a block's page holds one after another.
    pub specs: Vec<Spec>,
}

impl GroupDocument {
    /// Whether it holds recurrent state: one state for the whole sequence, in the first block.
    pub fn is_recurrent(&self) -> bool {
        self.specs.iter().all(Spec::is_recurrent)
    }

    /// Whether an order can be chosen for it. Recurrent state, pages of several specs, and caches whose
    /// scales lie behind the data of a block have orders of their own.
    pub fn takes_orders(&self) -> bool {
        matches!(&self.specs[..], [Spec::Attention(_) | Spec::Mla(_) | Spec::Opaque(_)])
    }
}

/// Where a [`GroupDocument`] comes from: what it takes to blame the right field, and that once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// Its place among the groups of the text that people wrote.
    pub(crate) position: usize,
    /// Whether anything that it says, or takes from the deployment, was found faulty; something
    /// harmless stands in for that.
    pub(crate) faulty: bool,
    /// Whether `block_size` is the deployment's.
    pub(crate) inherits_block_size: bool,
    /// Whether `num_blocks` is the deployment's.
    pub(crate) inherits_num_blocks: bool,
    /// Whether `order` is the deployment's.
    pub(crate) inherits_order: bool,
}
