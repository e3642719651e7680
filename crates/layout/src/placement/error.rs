//! Errors of placement, and the fields that they are about.

use std::fmt;

use thiserror::Error;

use crate::order::{Letter, OrderError};
use crate::partition::PartitionError;
use crate::view::MAX_ALLOCATION_BYTES;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PlacementError {
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("{component}: {error}")]
    Partition { spec: usize, component: &'static str, error: PartitionError },
    #[error("block_size {block_size} is not a multiple of tokens_per_state {tokens_per_state}")]
    RaggedState { block_size: u64, tokens_per_state: u64 },
    /// An axis is longer than any allocation.
    #[error(
        "{count} times {each} bytes exceeds {MAX_ALLOCATION_BYTES} bytes (8 TiB), the most that one \
         allocation may have; {} at most", MAX_ALLOCATION_BYTES.checked_div(*each).unwrap_or(0)
    )]
    TooMany { field: Field, count: u64, each: u64 },
    #[error("{what} exceeds {MAX_ALLOCATION_BYTES} bytes (8 TiB), the most that one allocation may have")]
    TooLarge { field: Field, what: &'static str },
    #[error("a stride of {stride} bytes along {letter} is too small: what is inside of it takes {needed}")]
    Overlap { letter: Letter, stride: u64, needed: u64 },
    #[error("layer_stride has no meaning where each layer is an allocation of its own")]
    LayerStridePerLayer,
    #[error("with B outside L, block_stride and layer_stride are given both or not at all")]
    OneStrideOnly { given: Field },
}

/// A field of a group. It is displayed as the end of its key path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Layers,
    BlockSize,
    NumBlocks,
    Order,
    Offset,
    BlockStride,
    LayerStride,
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

/// Returns the product of two sizes, if it does not exceed an allocation.
pub(super) fn product(a: u64, b: u64) -> Option<u64> {
    a.checked_mul(b).filter(|p| *p <= MAX_ALLOCATION_BYTES)
}

/// Returns the sum of two sizes, if it does not exceed an allocation.
pub(super) fn sum(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b).filter(|s| *s <= MAX_ALLOCATION_BYTES)
}
