//! Nested axes around a value, with the strides of an order or a document.

use smallvec::SmallVec;

use super::Shape;
use super::error::{Field, PlacementError, product, sum};
use crate::order::Letter;
use crate::view::{Axis, Dim, View};

/// Nested axes around a value, with their strides.
pub(super) struct Level {
    /// The axes, outermost first.
    axes: SmallVec<[Step; 6]>,
    pub(super) size: u64,
    /// The distance from the first used byte to the last.
    pub(super) span: u64,
}

#[derive(Clone, Copy)]
struct Step {
    letter: Letter,
    extent: u64,
    stride: u64,
}

impl Step {
    /// Returns the bytes from the first to the last of this axis, around something that spans `inside`.
    fn span(self, inside: u64) -> Option<u64> {
        sum(inside, product(self.stride, self.extent.saturating_sub(1))?)
    }
}

impl Level {
    /// Computes the strides of `letters` around a bundle of `bundle` bytes. `spec` is the index of the spec inside, and
    /// the field with its number of heads.
    pub(super) fn new(
        shape: &Shape<'_>,
        letters: &[Letter],
        bundle: u64,
        spec: Option<(usize, &'static str)>,
        extent: impl Fn(Letter) -> u64,
    ) -> Result<Self, PlacementError> {
        let explicit = |letter| match letter {
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
            let step = Step { letter, extent: extent(letter), stride: explicit(letter).unwrap_or(size) };
            axes.push(step);
            size = product(step.stride, step.extent).ok_or(PlacementError::TooMany {
                field: field(letter),
                count: step.extent,
                each: step.stride,
            })?;
        }
        // Positions never overlap if each stride, from the smallest up, is at least the span of all smaller ones.
        let mut by_stride = axes.clone();
        by_stride.sort_by_key(|step| step.stride);
        let mut span = bundle;
        for step in by_stride {
            let letter = step.letter;
            let single = step.extent <= 1;
            let least = if single { bundle } else { span };
            if step.stride < least && (!single || explicit(letter).is_some()) {
                // Report a stride that would work: the span of everything inside the axis.
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

    pub(super) fn wrap(&self, view: &mut View) {
        for step in &self.axes {
            let axis = match step.letter {
                Letter::L => Axis::Layer,
                Letter::B => Axis::Block,
                Letter::S => Axis::State,
                Letter::H => Axis::Unit,
                Letter::C | Letter::K | Letter::D => continue,
            };
            // If the units are part of the content, H is an additional axis of extent 1.
            if view.dims.iter().all(|dim| dim.axis != axis) {
                view.dims.push(Dim { axis, extent: step.extent, stride: step.stride });
            }
        }
        view.dims.sort_by_key(|dim| dim.axis);
    }

    pub(super) fn stride(&self, wanted: Letter) -> u64 {
        let mut axes = self.axes.iter();
        axes.find(|step| step.letter == wanted).map_or(0, |step| step.stride)
    }
}
