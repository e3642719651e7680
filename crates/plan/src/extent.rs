//! The extent of a nest along the token axis, and the nests made for each extent.

use std::collections::HashMap;
use std::iter::{Zip, zip};
use std::ops::RangeFrom;
use std::slice;

use smallvec::SmallVec;

use crate::nest::Strided;
use crate::program::Loop;
use crate::sides::Sides;
use crate::tokens::Segment;

/// The number of a nest's steps along states and blocks, and a condition on its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extent {
    pub(crate) states: u64,
    /// The loops over ranges of that many states, with steps in states.
    pub(crate) strides: [Loop; 2],
    /// The number of neighbouring blocks on both sides, each with `states` states.
    pub(crate) blocks: u64,
    /// Whether the nest starts at state 0 of a block at each of its places.
    pub(crate) zero: Sides<bool>,
}

/// The nests of a class for each extent. Few extents repeat over many segments.
#[derive(Default)]
pub(crate) struct NestsByExtent {
    /// For each extent, the program's index of the first nest, and the nests.
    made: Vec<(Extent, u32, SmallVec<[Strided; 4]>)>,
    /// Finds extents after the first few, which are faster to search linearly.
    by_extent: HashMap<Extent, usize>,
}

impl NestsByExtent {
    /// Returns a segment's nests, each with its index in the program. They are made when their extent first occurs.
    pub(crate) fn get(
        &mut self,
        segment: &Segment,
        make: impl FnOnce(Extent) -> (u32, SmallVec<[Strided; 4]>),
    ) -> Zip<RangeFrom<u32>, slice::Iter<'_, Strided>> {
        const FEW: usize = 8;
        let Segment { at, states, strides, blocks } = *segment;
        let extent = Extent { states, strides, blocks, zero: at.map(|place| place.state == 0) };
        let made = &mut self.made;
        let few = made.iter().take(FEW).position(|(known, ..)| *known == extent);
        let index = few.unwrap_or_else(|| {
            let next = made.len();
            let index = match next < FEW {
                true => next,
                false => *self.by_extent.entry(extent).or_insert(next),
            };
            if index == next {
                let (first, nests) = make(extent);
                made.push((extent, first, nests));
            }
            index
        });
        let (_, first, nests) = &self.made[index];
        zip(*first.., nests)
    }
}
