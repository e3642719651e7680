//! How far a nest goes along the token axis, and the nests that are made for each such extent.

use std::collections::HashMap;
use std::iter::{Zip, zip};
use std::ops::RangeFrom;
use std::slice;

use smallvec::SmallVec;

use crate::nest::Strided;
use crate::sides::Sides;
use crate::tokens::Segment;

/// How many steps a nest takes along states and blocks, and where it may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extent {
    pub(crate) states: u64,
    /// Neighbouring blocks of both sides that the nest goes through, each with `states` states.
    pub(crate) blocks: u64,
    /// Whether the nest starts at state 0 of a block wherever it is placed.
    pub(crate) zero: Sides<bool>,
}

/// The nests of a class for each extent that occurs: few extents repeat over many segments.
#[derive(Default)]
pub(crate) struct NestsByExtent {
    /// With the index that the first of the nests has in a program.
    made: Vec<(Extent, u32, SmallVec<[Strided; 4]>)>,
    /// Finds what was made after the first few, which are faster to look through.
    by_extent: HashMap<Extent, usize>,
}

impl NestsByExtent {
    /// The nests for a segment, made where their extent occurs for the first time, each with its index in the program.
    pub(crate) fn get(
        &mut self,
        segment: &Segment,
        make: impl FnOnce(Extent) -> (u32, SmallVec<[Strided; 4]>),
    ) -> Zip<RangeFrom<u32>, slice::Iter<'_, Strided>> {
        const FEW: usize = 8;
        let extent =
            Extent { states: segment.states, blocks: segment.blocks, zero: segment.at.map(|place| place.state == 0) };
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
