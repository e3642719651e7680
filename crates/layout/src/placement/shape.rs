//! The input of a placement.

use serde::{Deserialize, Serialize};

use crate::order::Order;
use crate::spec::Spec;

/// Whether a group has one allocation for all layers, or one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Allocation {
    /// All layers of a rank are in one allocation.
    #[default]
    One,
    /// Each layer has its own allocation.
    PerLayer,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) specs: &'a [Spec],
    pub(crate) order: Option<&'a Order>,
    pub(crate) allocation: Allocation,
    pub(crate) tp: u32,
    pub(crate) layer_slots: u64,
    pub(crate) num_blocks: u64,
    pub(crate) block_size: u64,
    pub(crate) offset: u64,
    pub(crate) block_stride: Option<u64>,
    pub(crate) layer_stride: Option<u64>,
}
