//! Routes: the slices that one source rank sends to one destination rank.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use transload_layout::Rank;

use crate::extent::Extent;
use crate::nest::{ComponentSet, Origin, Strided, fuse, simplify};
use crate::program::Loop;
use crate::sides::{SIDES, Sides};
use crate::tokens::StateRange;

/// The data that one source rank sends to one destination rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The source rank.
    pub src_rank: Rank,
    /// The destination rank.
    pub dst_rank: Rank,
    pub(crate) groups: Vec<RouteGroup>,
}

/// The slices of one group on one route that travel for the same layers.
/// Most groups have one of these on each route. If replicas divide layers, replicated components travel for fewer
/// layers than others. Then the group has several, each for other layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteGroup {
    pub(crate) group: usize,
    /// The global layers that two stages have in common. All routes between them share this list.
    pub(crate) in_common: Arc<[u32]>,
    pub(crate) slots: Range<usize>,
    pub(crate) slices: SmallVec<[Slice; 2]>,
}

/// The units of a component that both ranks hold, with strides on both sides. Block tables determine blocks and states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub(crate) component: usize,
    pub(crate) class: Class,
    pub(crate) at: Sides<Origin>,
    /// The loop over layers. It is separate because streams may be ordered by layer.
    pub(crate) layers: Loop,
    pub(crate) units: Loop,
    pub(crate) loops: SmallVec<[Loop; 4]>,
}

/// The placement of slices along the token axis: which states travel, and how the blocks of both sides and the states
/// in them are laid out. Slices of one class may share segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    pub(crate) range: StateRange,
    /// Whether a state's address is linear in `block * states_per_block + state`.
    pub(crate) linear: Sides<bool>,
    /// Whether the stride of blocks is smaller than that of states: on both sides, or on one side if the other's blocks
    /// hold one state each.
    pub(crate) states_outside: bool,
}

/// A range of states that slices of some classes all move in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) class: Class,
    pub(crate) classes: SmallVec<[Class; 2]>,
}

/// The data of one group on a route, as if it started at 0 on both sides. Routes of other ranks may share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteShape {
    group: usize,
    /// For each range of layers, the number of layers and the slices.
    parts: SmallVec<[(usize, SmallVec<[Slice; 2]>); 1]>,
}

impl RouteShape {
    pub(crate) fn of(parts: &[RouteGroup]) -> (Self, Sides<u64>) {
        let slices = || parts.iter().flat_map(|part| &part.slices);
        let start = Sides::of(|side| {
            let bases = slices().map(|slice| slice.at[side].base);
            bases.min().unwrap_or(0)
        });
        let at_zero = |part: &RouteGroup| {
            let mut slices = part.slices.clone();
            for slice in &mut slices {
                for side in SIDES {
                    slice.at[side].base -= start[side];
                }
            }
            (part.layers().len(), slices)
        };
        let shape =
            Self { group: parts.first().map_or(0, |part| part.group), parts: parts.iter().map(at_zero).collect() };
        (shape, start)
    }
}

impl Slice {
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.loops.iter().map(|l| l.count).product()
    }

    pub(crate) fn at_slot(&self, slot: u64) -> Sides<Origin> {
        Sides::of(|side| Origin { base: self.at[side].base + slot * self.layers.stride(side), ..self.at[side] })
    }
}

impl RouteGroup {
    pub(crate) fn layers(&self) -> &[u32] {
        &self.in_common[self.slots.clone()]
    }

    /// Returns the fewest nests that move `extent` of the slices of these classes, which have the same steps. With
    /// `layer`, only for that layer slot.
    pub(crate) fn nests(&self, classes: &[Class], extent: Extent, layer: Option<u64>) -> SmallVec<[Strided; 4]> {
        let mut nests = SmallVec::new();
        for slice in self.slices.iter().filter(|s| classes.contains(&s.class)) {
            let mut loops: SmallVec<[Loop; 8]> = slice.loops.iter().copied().collect();
            loops.push(slice.units);
            let mut at = slice.at;
            match layer {
                None => loops.push(Loop { count: self.layers().len() as u64, ..slice.layers }),
                Some(slot) => at = slice.at_slot(slot),
            }
            let state = at.map(|origin| origin.state_stride);
            let block = Sides::of(|side| match slice.class.linear[side] {
                true => extent.states * state[side],
                false => at[side].block_stride,
            });
            loops.push(Loop::new(extent.states, state));
            loops.push(Loop::new(extent.blocks, block));
            loops.extend(extent.strides.map(|step| step.times(state)));
            nests.push(Strided { components: ComponentSet::one(slice.component), at, nest: simplify(loops, 1) });
        }
        if nests.len() > 1 {
            fuse(&mut nests, extent.zero);
        }
        nests
    }

    /// Returns the maximum number of places where its nests can start, for any tables.
    pub(crate) fn most_places(&self) -> u64 {
        let classes = self.slices.iter().map(|slice| slice.class);
        let places = classes.map(|class| match class.states_outside {
            true => class.range.count(),
            false => class.range.most_cuts(1),
        });
        places.fold(0, u64::saturating_add)
    }

    pub(crate) fn bytes(&self) -> u64 {
        let slices = self.slices.iter();
        slices.map(|slice| self.slice_bytes(slice)).sum()
    }

    pub(crate) fn slice_bytes(&self, slice: &Slice) -> u64 {
        slice.class.range.count() * slice.unit_bytes() * slice.units.count * self.layers().len() as u64
    }

    pub(crate) fn classes(&self) -> SmallVec<[Class; 2]> {
        let mut classes = SmallVec::new();
        for slice in &self.slices {
            if !classes.contains(&slice.class) {
                classes.push(slice.class);
            }
        }
        classes
    }

    /// Divides the states that travel, so that slices of different ranges can move together where they move the same
    /// part of a block.
    ///
    /// Most groups have one range, and one piece for each class. If there are several ranges, the blocks in which a
    /// range begins or ends are separate pieces.
    pub(crate) fn pieces(&self) -> SmallVec<[Piece; 2]> {
        let classes = self.classes();
        let mut pieces: SmallVec<[Piece; 2]> = SmallVec::new();
        for class in &classes {
            let range = class.range;
            let mut ends: SmallVec<[u64; 8]> = SmallVec::new();
            for other in &classes {
                let of = other.range;
                let alike = Class { range, ..*other } == *class && of.block == range.block;
                if alike && of != range {
                    for bound in [range.first, range.end, of.first, of.end] {
                        ends.extend([of.block_end_from(bound), of.block_end_until(bound)]);
                    }
                }
            }
            ends.push(range.end);
            ends.retain(|end| range.first < *end && *end <= range.end);
            ends.sort_unstable();
            ends.dedup();
            let mut first = range.first;
            for end in ends {
                let mut part = *class;
                (part.range.first, part.range.end) = (first, end);
                first = end;
                match pieces.iter_mut().find(|piece| piece.class == part) {
                    Some(piece) => piece.classes.push(*class),
                    None => pieces.push(Piece { class: part, classes: SmallVec::from_elem(*class, 1) }),
                }
            }
        }
        pieces
    }
}
