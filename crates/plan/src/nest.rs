//! Conversion of strides on two sides to the fewest, longest chunks.

use std::ops::Range;

use smallvec::SmallVec;
use thiserror::Error;
use transload_layout::{ALLOCATION_BITS, Axis, ComponentView};

use crate::program::{Loop, Nest, Placed, Program};
use crate::sides::{Sides, both};
use crate::tokens::Place;

/// A set of components as bits. The n-th bit is the n-th component of a group, counted over its specs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ComponentSet(pub u64);

impl ComponentSet {
    pub(crate) fn one(index: usize) -> Self {
        Self(1 << (index as u64 % 64))
    }

    /// Tells whether the n-th component is in the set.
    pub fn contains(self, index: usize) -> bool {
        self.0 & Self::one(index).0 != 0
    }
}

/// A nest, with the addresses of its first chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    pub(crate) components: ComponentSet,
    pub(crate) at: Sides<Origin>,
    pub(crate) nest: Nest,
}

/// The start address of a nest on one side: `base + block * block_stride + state * state_stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Origin {
    pub(crate) base: u64,
    pub(crate) block_stride: u64,
    pub(crate) state_stride: u64,
}

impl Origin {
    pub(crate) fn at(self, place: Place) -> u64 {
        self.base + place.block * self.block_stride + place.state * self.state_stride
    }

    /// Tells whether `next` starts right after `run` bytes, in every block, at every state or (`state_is_zero`) at 0.
    fn runs_into(self, next: Self, run: u64, state_is_zero: bool) -> bool {
        self.base + run == next.base
            && self.block_stride == next.block_stride
            && (state_is_zero || self.state_stride == next.state_stride)
    }
}

/// Drops loops of one step, sorts the rest, and merges loops that chain on both sides.
pub(crate) fn simplify(mut loops: SmallVec<[Loop; 8]>, mut run: u64) -> Nest {
    loops.retain(|l| l.count != 1);
    // Sort outermost first by destination stride, so that writes go through memory once and in order. Loops from one
    // allocation to the next stay outside of all others.
    loops.sort_by_key(|l| {
        let crosses = l.src.max(l.dst) >> ALLOCATION_BITS != 0;
        std::cmp::Reverse((crosses, l.dst, l.src))
    });
    let mut merged: SmallVec<[Loop; 4]> = SmallVec::new();
    for l in loops.into_iter().rev() {
        match merged.last_mut() {
            None if l.src == run && l.dst == run => run *= l.count,
            Some(inner) if l.src == inner.src * inner.count && l.dst == inner.dst * inner.count => {
                inner.count *= l.count;
            }
            _ => merged.push(l),
        }
    }
    merged.reverse();
    Nest { loops: merged, run }
}

/// Joins nests whose chunks are adjacent on both sides, as often as possible.
/// `zero` tells for each side whether the state is 0 at all places of these nests.
pub(crate) fn fuse(nests: &mut SmallVec<[Strided; 4]>, zero: Sides<bool>) {
    let follows = |a: &Strided, b: &Strided| {
        a.nest.loops == b.nest.loops && both(|side| a.at[side].runs_into(b.at[side], a.nest.run, zero[side]))
    };
    let joint = |nests: &[Strided]| {
        let indices = 0..nests.len();
        let mut pairs = indices.clone().flat_map(|i| indices.clone().map(move |j| (i, j)));
        pairs.find(|&(i, j)| i != j && follows(&nests[i], &nests[j]))
    };
    while let Some((i, j)) = joint(nests) {
        let (run, components) = (nests[j].nest.run, nests[j].components);
        let first = &mut nests[i];
        let loops = first.nest.loops.iter().copied().collect();
        first.nest = simplify(loops, first.nest.run + run);
        first.components.0 |= components.0;
        nests.remove(j);
    }
}

/// Returns the loop over two views along an axis, which has the same extent in both.
pub(crate) fn strides(src: &ComponentView, dst: &ComponentView, axis: Axis) -> Loop {
    let (src, dst) = (src.view.dim(axis), dst.view.dim(axis));
    Loop { count: src.extent, src: src.stride, dst: dst.stride }
}

/// Describes why two lists of views do not pair up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PairError {
    /// The lists have different lengths.
    #[error("{src} views at the source, {dst} at the destination")]
    Count { src: usize, dst: usize },
    /// Two views are of different specs or components.
    #[error(
        "view {index} is of component {} of spec {} at the source, but {} of {} at the destination",
        src.1, src.0, dst.1, dst.0
    )]
    Component { index: usize, src: (usize, usize), dst: (usize, usize) },
    /// Two views are of the same component, but of different units of the whole model.
    #[error("view {index} has units {src:?} at the source and {dst:?} at the destination")]
    Units { index: usize, src: Range<u64>, dst: Range<u64> },
    /// Two views have different shapes.
    #[error("view {index}: {axis:?} has {src} positions at the source and {dst} at the destination")]
    Extent { index: usize, axis: Axis, src: u64, dst: u64 },
}

/// Returns the chunks between two lists of views that pair up: the longest runs that are contiguous on both sides, as
/// loop nests. Views whose chunks are adjacent on both sides are joined.
///
/// All axes are used as they are, including blocks. So this is the transfer of whole caches with equal block sizes and
/// identical block tables. [`Plan`](crate::Plan) supports any block sizes and tables.
///
/// # Errors
/// Returns an error if the views of a pair differ in component, units or shape.
///
/// ```
/// use transload_layout::{Deployment, Dtype, Group, Rank, Side, Spec, TpRank};
/// use transload_layout::{make_meta_kv_cache, slice_for_tp_transfer};
/// use transload_plan::jointly_contiguous_chunks;
///
/// let group = Group::builder("attn", "0-1", Spec::attention(8, 128, Dtype::Bf16));
/// let side = |tp, order| {
///     let side = Deployment::builder().tp(tp).block_size(16).num_blocks(4).order(order);
///     side.group(group.clone()).build().unwrap()
/// };
/// // Rank 1 of 2 holds heads 4 to 7, rank 3 of 4 heads 6 and 7.
/// let (prefill, decode) = (side(2, "NHD"), side(4, "HND"));
/// let (src, dst) = (TpRank { tp: 2, rank: 1 }, TpRank { tp: 4, rank: 3 });
/// let theirs = &make_meta_kv_cache(&prefill, Rank(1))[0];
/// let mine = &make_meta_kv_cache(&decode, Rank(3))[0];
/// let reads = slice_for_tp_transfer(theirs, Side::Source, src, decode.groups()[0].specs(), dst)?;
/// let writes = slice_for_tp_transfer(mine, Side::Destination, dst, prefill.groups()[0].specs(), src)?;
///
/// // A key and its value lie together on both sides; two heads or two tokens on one side only.
/// let program = jointly_contiguous_chunks(&reads, &writes)?;
/// assert_eq!(program.chunks(), 2 * 4 * 16 * 2);
/// assert_eq!(program.bytes(), program.chunks() * 2 * 128 * 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn jointly_contiguous_chunks(src: &[ComponentView], dst: &[ComponentView]) -> Result<Program, PairError> {
    if src.len() != dst.len() {
        return Err(PairError::Count { src: src.len(), dst: dst.len() });
    }
    let mut nests: SmallVec<[Strided; 4]> = SmallVec::new();
    for (index, (src, dst)) in src.iter().zip(dst).enumerate() {
        let loops = paired(index, src, dst)?;
        let at = Sides { src, dst }.map(|side| Origin { base: side.view.offset, ..Origin::default() });
        nests.push(Strided { components: ComponentSet::one(index), at, nest: simplify(loops, 1) });
    }
    nests.retain(|strided| strided.nest.bytes() > 0);
    fuse(&mut nests, Sides { src: true, dst: true });
    Ok(Program {
        placed: (0..)
            .zip(&nests)
            .map(|(nest, strided)| Placed { nest, src: strided.at.src.base, dst: strided.at.dst.base })
            .collect(),
        nests: nests.into_iter().map(|strided| strided.nest).collect(),
    })
}

fn paired(index: usize, src: &ComponentView, dst: &ComponentView) -> Result<SmallVec<[Loop; 8]>, PairError> {
    let of = |view: &ComponentView| (view.spec, view.component);
    if of(src) != of(dst) {
        return Err(PairError::Component { index, src: of(src), dst: of(dst) });
    }
    if src.units != dst.units {
        return Err(PairError::Units { index, src: src.units.clone(), dst: dst.units.clone() });
    }
    for axis in axes(src).chain(axes(dst)) {
        let (a, b) = (src.view.dim(axis), dst.view.dim(axis));
        if a.extent != b.extent {
            return Err(PairError::Extent { index, axis, src: a.extent, dst: b.extent });
        }
    }
    Ok(axes(src).map(|axis| strides(src, dst, axis)).collect())
}

fn axes(view: &ComponentView) -> impl Iterator<Item = Axis> + '_ {
    view.view.dims.iter().map(|dim| dim.axis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nest(loops: &[(u64, u64, u64)], run: u64) -> Nest {
        let loops = loops.iter().map(|(count, src, dst)| Loop { count: *count, src: *src, dst: *dst }).collect();
        simplify(loops, run)
    }

    #[test]
    fn loops_that_chain_on_both_sides_become_one_run() {
        let whole = nest(&[(4, 128, 128), (2, 64, 64), (64, 1, 1)], 1);
        assert!(whole.loops.is_empty());
        assert_eq!(whole.run, 512);
    }

    #[test]
    fn loops_that_chain_on_one_side_only_stay() {
        let strided = nest(&[(4, 256, 128), (128, 1, 1)], 1);
        assert_eq!((strided.chunks(), strided.run), (4, 128));
    }

    #[test]
    fn loops_that_chain_outside_the_run_merge_with_each_other() {
        let strided = nest(&[(4, 1024, 512), (8, 128, 64), (64, 1, 1)], 1);
        assert_eq!(strided.loops.len(), 1);
        assert_eq!((strided.chunks(), strided.run), (32, 64));
    }
}
