//! Axes around something, with the strides that an order or a document gives them.

use smallvec::SmallVec;

use super::Shape;
use super::error::{Field, PlacementError, product, sum};
use crate::order::Letter;
use crate::view::{Axis, Dim, View};

/// Axes around something, with their strides.
pub(super) struct Level {
    /// Outermost first.
    axes: SmallVec<[Step; 6]>,
    /// What it takes with all its padding.
    pub(super) size: u64,
    /// From its first byte in use to its last.
    pub(super) span: u64,
}

/// One axis of a level.
#[derive(Clone, Copy)]
struct Step {
    letter: Letter,
    extent: u64,
    stride: u64,
}

impl Step {
    /// What it takes from its first byte to its last, around something that spans `inside`.
    fn span(self, inside: u64) -> Option<u64> {
        sum(inside, product(self.stride, self.extent.saturating_sub(1))?)
    }
}

impl Level {
    /// Strides of `letters` around a bundle of `bundle` bytes. `spec` is what lies inside, and the
    /// field that says how many heads it has.
    pub(super) fn new(
        shape: &Shape<'_>,
        letters: &[Letter],
        bundle: u64,
        spec: Option<(usize, &'static str)>,
        extent: impl Fn(Letter) -> u64,
    ) -> Result<Self, PlacementError> {
        let given = |letter| match letter {
            Letter::B => shape.block_stride,
            Letter::L => shape.layer_stride,
            _ => None,
        };
        let field = |letter| match (letter, spec) {
            (Letter::B, _) if shape.block_stride.is_some() => Field::BlockStride,
            (Letter::B, _) => Field::NumBlocks,
            (Letter::L, _) if shape.layer_stride.is_some() => Field::LayerStride,
            (Letter::L, _) | (_, None) => Field::Layers,
            (Letter::S, _) => Field::BlockSize,
            (Letter::H, Some((index, heads))) => Field::Spec(index, Some(heads)),
            (_, Some((index, _))) => Field::Spec(index, None),
        };
        let mut axes: SmallVec<[Step; 6]> = SmallVec::new();
        let mut size = bundle;
        for letter in letters.iter().rev().copied() {
            let step = Step { letter, extent: extent(letter), stride: given(letter).unwrap_or(size) };
            axes.push(step);
            size = product(step.stride, step.extent).ok_or(PlacementError::TooMany {
                field: field(letter),
                count: step.extent,
                each: step.stride,
            })?;
        }
        // Positions never share bytes if, from the smallest stride up, each stride steps over all that
        // the smaller ones span.
        let mut by_stride = axes.clone();
        by_stride.sort_by_key(|step| step.stride);
        let mut span = bundle;
        for step in by_stride {
            let letter = step.letter;
            let alone = step.extent <= 1;
            let least = if alone { bundle } else { span };
            if step.stride < least && (!alone || given(letter).is_some()) {
                // Told is what would do: all that the order has inside of the axis.
                let mut inside = axes.iter().take_while(|inner| inner.letter != letter);
                let inside = inside.try_fold(bundle, |span, inner| inner.span(span));
                return Err(PlacementError::Overlap {
                    letter,
                    stride: step.stride,
                    needed: inside.map_or(least, |inside| inside.max(least)),
                });
            }
            span = step.span(span).ok_or(PlacementError::TooLarge { field: field(letter), what: "the allocation" })?;
        }
        axes.reverse();
        Ok(Self { axes, size: size.max(span), span })
    }

    /// Adds the level's axes to a view of what it wraps.
    pub(super) fn wrap(&self, view: &mut View) {
        for step in &self.axes {
            let axis = match step.letter {
                Letter::L => Axis::Layer,
                Letter::B => Axis::Block,
                Letter::S => Axis::State,
                Letter::H => Axis::Unit,
                Letter::C | Letter::K | Letter::D => continue,
            };
            // Where the units lie inside the content, H is an axis of extent 1 beside them.
            if view.dims.iter().all(|dim| dim.axis != axis) {
                view.dims.push(Dim { axis, extent: step.extent, stride: step.stride });
            }
        }
        view.dims.sort_by_key(|dim| dim.axis);
    }

    /// The stride of an axis; 0 if it is none of the level's.
    pub(super) fn stride(&self, wanted: Letter) -> u64 {
        let mut axes = self.axes.iter();
        axes.find(|step| step.letter == wanted).map_or(0, |step| step.stride)
    }
}
