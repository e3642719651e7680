//! Why a group has no placement, and which field says so.

use std::fmt;

use thiserror::Error;

use crate::order::{Letter, OrderError};
use crate::partition::PartitionError;
use crate::view::MAX_ALLOCATION_BYTES;

/// Why a group has no placement.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PlacementError {
    /// The order does not suit the spec.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// Heads or groups do not go into the TP size.
    #[error("{component}: {error}")]
    Partition {
        /// Which spec.
        spec: usize,
        /// The component.
        component: &'static str,
        /// What does not divide.
        error: PartitionError,
    },
    /// `block_size` is no multiple of the tokens of one state.
    #[error("block_size {block_size} is no multiple of tokens_per_state {tokens_per_state}")]
    RaggedState {
        /// Tokens per block.
        block_size: u64,
        /// Tokens per state.
        tokens_per_state: u64,
    },
    /// Steps along an axis that lead beyond the end of every allocation.
    #[error(
        "{count} times {each} bytes exceeds {MAX_ALLOCATION_BYTES} bytes (8 TiB), the most that one \
         allocation may have; {} at most", MAX_ALLOCATION_BYTES.checked_div(*each).unwrap_or(0)
    )]
    TooMany {
        /// What says how many steps there are.
        field: Field,
        /// How many steps.
        count: u64,
        /// Bytes of each.
        each: u64,
    },
    /// A sum that does not fit.
    #[error("{what} exceeds {MAX_ALLOCATION_BYTES} bytes (8 TiB), the most that one allocation may have")]
    TooLarge {
        /// Which field made it so.
        field: Field,
        /// What was computed.
        what: &'static str,
    },
    /// Strides that make positions share bytes.
    #[error("a stride of {stride} bytes along {letter} is too small: what is inside of it takes {needed}")]
    Overlap {
        /// The axis.
        letter: Letter,
        /// Its stride.
        stride: u64,
        /// The least it may be.
        needed: u64,
    },
    /// `layer_stride` where there is nothing that it could be the stride of.
    #[error("layer_stride has no meaning where each layer is an allocation of its own")]
    LayerStridePerLayer,
    /// One stride without the other.
    #[error("with B outside L, block_stride and layer_stride are given both or not at all")]
    OneStrideOnly {
        /// The one that is there.
        given: Field,
    },
}

/// A field of a group; shown as the end of its key path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Layers,
    BlockSize,
    NumBlocks,
    Order,
    Offset,
    BlockStride,
    LayerStride,
    /// A spec, or one of its fields.
    Spec(usize, Option<&'static str>),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Layers => "layers",
            Field::BlockSize => "block_size",
            Field::NumBlocks => "num_blocks",
            Field::Order => "order",
            Field::Offset => "offset",
            Field::BlockStride => "block_stride",
            Field::LayerStride => "layer_stride",
            Field::Spec(index, None) => return write!(f, "spec[{index}]"),
            Field::Spec(index, Some(field)) => return write!(f, "spec[{index}].{field}"),
        })
    }
}

impl PlacementError {
    /// The field of a group that the error is about.
    pub(crate) fn field(&self) -> Field {
        match self {
            PlacementError::Order(_) => Field::Order,
            PlacementError::Partition { spec, .. } => Field::Spec(*spec, None),
            PlacementError::RaggedState { .. } => Field::BlockSize,
            PlacementError::LayerStridePerLayer => Field::LayerStride,
            PlacementError::Overlap { letter: Letter::L, .. } => Field::LayerStride,
            PlacementError::Overlap { .. } => Field::BlockStride,
            PlacementError::OneStrideOnly { given: field }
            | PlacementError::TooMany { field, .. }
            | PlacementError::TooLarge { field, .. } => *field,
        }
    }
}

/// A product of sizes, if an allocation may be as long.
pub(super) fn product(a: u64, b: u64) -> Option<u64> {
    a.checked_mul(b).filter(|p| *p <= MAX_ALLOCATION_BYTES)
}

/// A sum of sizes, if an allocation may be as long.
pub(super) fn sum(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b).filter(|s| *s <= MAX_ALLOCATION_BYTES)
}
