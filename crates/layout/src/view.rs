//! Views: where the bytes of one component lie, as offset, extents and byte strides.
//!
//! A view is a tensor without memory (a *meta* tensor): it says where every byte would be, and
//! holds none.
//!
//! **Addresses.** The memory of one rank and group is an address space of 64 bits. The upper 20 bits
//! number the allocation (always 0 where the group lies in one; the layer slot where each layer has
//! its own), the lower [`ALLOCATION_BITS`] are the byte offset inside it. A step from layer to layer
//! is thereby a stride like any other.

use std::ops::Range;

use smallvec::SmallVec;

/// The number of low bits of an address that are the offset inside one allocation.
pub const ALLOCATION_BITS: u32 = 44;

/// The most bytes that one allocation may have (8 TiB).
///
/// Half of what an offset could count, so that a step inside one allocation is never as long as one that
/// leads into the next, and no run goes on from one allocation into another.
pub const MAX_ALLOCATION_BYTES: u64 = 1 << (ALLOCATION_BITS - 1);

/// Splits an address into the number of its allocation and the byte offset inside it.
pub const fn split_address(address: u64) -> (usize, u64) {
    ((address >> ALLOCATION_BITS) as usize, address & ((1 << ALLOCATION_BITS) - 1))
}

/// What stepping along an axis of a [`View`] means.
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
    /// `C`: along a content axis of the component, numbered as its spec lists them.
    Content(u8),
    /// Inside one element.
    Byte,
}

/// One axis of a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// What it steps along.
    pub axis: Axis,
    /// How many positions it has.
    pub extent: u64,
    /// Bytes from one position to the next.
    pub stride: u64,
}

/// A region of one address space: `offset` plus, for each dim, a position times its stride.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Address of the first byte.
    pub offset: u64,
    /// The axes, each at most once, in the order `L, B, S, H, C…, byte`.
    pub dims: SmallVec<[Dim; 8]>,
}

impl View {
    /// The dim of `axis`. An axis that a view lacks has extent 1.
    pub fn dim(&self, axis: Axis) -> Dim {
        self.dims.iter().copied().find(|d| d.axis == axis).unwrap_or(Dim { axis, extent: 1, stride: 0 })
    }

    /// The part of the view with positions `range` of `axis` (positions it must have).
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

    /// How many bytes the view holds.
    pub fn bytes(&self) -> u64 {
        self.dims.iter().map(|d| d.extent).product()
    }

    /// Extents in the semantic order `[L, B, S, H, C]`, content in bytes.
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
    /// Which spec of its group, counted as the document lists them.
    pub spec: usize,
    /// Which component of that spec, counted as the spec lists them.
    pub component: usize,
    /// The units of the whole model that its `H` axis holds.
    pub units: Range<u64>,
    /// Where its bytes are.
    pub view: View,
}
