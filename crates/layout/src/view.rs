//! Views: the location of one component's bytes, as offset, extents and byte strides.
//!
//! A view is a tensor without memory (a *meta* tensor): it describes where every byte would be.
//!
//! **Addresses.** The memory of one rank and group is an address space of 64 bits. The upper 20 bits are the number of
//! the allocation: always 0 for a single allocation, or the layer slot if each layer has its own. The lower
//! [`ALLOCATION_BITS`] are the byte offset inside it. So a step from layer to layer is a stride like any other.

use std::ops::Range;

use smallvec::SmallVec;

/// The number of low bits of an address that hold the offset inside an allocation.
pub const ALLOCATION_BITS: u32 = 44;

/// The maximum size of an allocation in bytes (8 TiB).
///
/// It is half of what an offset can hold. So a step inside an allocation is always shorter than one into the next, and
/// no run of bytes continues into another allocation.
pub const MAX_ALLOCATION_BYTES: u64 = 1 << (ALLOCATION_BITS - 1);

/// Splits an address into the number of its allocation and the byte offset inside it.
pub const fn split_address(address: u64) -> (usize, u64) {
    ((address >> ALLOCATION_BITS) as usize, address & ((1 << ALLOCATION_BITS) - 1))
}

/// The meaning of a step along an axis of a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// `L`: to the next layer slot of this rank.
    Layer,
    /// `B`: to the next block.
    Block,
    /// `S`: to the next state of the block.
    State,
    /// `H`: to the next unit (head, group, channel) that this rank owns.
    Unit,
    /// `C`: along a content axis of the component, numbered as in its spec.
    Content(u8),
    /// Inside one element.
    Byte,
}

/// An axis of a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The meaning of a step.
    pub axis: Axis,
    /// The number of positions.
    pub extent: u64,
    /// The distance in bytes from one position to the next.
    pub stride: u64,
}

/// A region of an address space. An address is `offset` plus, for each dim, a position times its stride.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The address of the first byte.
    pub offset: u64,
    /// The axes, each at most once, in the order `L, B, S, H, C…, byte`.
    pub dims: SmallVec<[Dim; 8]>,
}

impl View {
    /// Returns the dim of `axis`. An axis that the view lacks has extent 1.
    pub fn dim(&self, axis: Axis) -> Dim {
        self.dims.iter().copied().find(|d| d.axis == axis).unwrap_or(Dim { axis, extent: 1, stride: 0 })
    }

    /// Returns the part of the view with positions `range` of `axis`, which must exist.
    #[must_use]
    pub fn narrow(&self, axis: Axis, range: Range<u64>) -> Self {
        let mut narrowed = self.clone();
        for dim in &mut narrowed.dims {
            if dim.axis == axis {
                debug_assert!(range.start <= range.end && range.end <= dim.extent);
                narrowed.offset += range.start * dim.stride;
                dim.extent = range.end - range.start;
            }
        }
        narrowed
    }

    /// Returns the number of bytes in the view.
    pub fn bytes(&self) -> u64 {
        self.dims.iter().map(|d| d.extent).product()
    }

    /// Returns the extents in the semantic order `[L, B, S, H, C]`, with the content in bytes.
    pub fn shape(&self) -> [u64; 5] {
        let content =
            self.dims.iter().filter(|d| matches!(d.axis, Axis::Content(_) | Axis::Byte)).map(|d| d.extent).product();
        [
            self.dim(Axis::Layer).extent,
            self.dim(Axis::Block).extent,
            self.dim(Axis::State).extent,
            self.dim(Axis::Unit).extent,
            content,
        ]
    }
}

/// The view of one component of one spec on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ComponentView {
    /// The index of the spec in its group.
    pub spec: usize,
    /// The index of the component in its spec.
    pub component: usize,
    /// The units of the whole model on its `H` axis.
    pub units: Range<u64>,
    /// The location of its bytes.
    pub view: View,
}
