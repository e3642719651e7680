//! Segments: the token axis, cut at both sides' blocks and joined again where blocks are neighbours.

use crate::program::Loop;
use crate::route::Class;
use crate::sides::{Sides, both};
use crate::table::Lookup;
use crate::tokens::{Place, Segment};

#[derive(Clone, Copy)]
struct Blocks {
    size: u64,
    /// Whether a block continues where the previous one in memory ends.
    linear: bool,
}

impl Blocks {
    /// Returns the place `blocks` blocks later, in each of which there are `states` states.
    fn further(self, place: Place, states: u64, blocks: u64) -> Place {
        if self.linear {
            let at = place.block * self.size + place.state + states * blocks;
            return Place { block: at / self.size, state: at % self.size };
        }
        Place { block: place.block + blocks, ..place }
    }

    /// Tells whether `next` follows directly after `states` states from `last`, inside the same block or, if blocks are
    /// linear, into the next.
    fn continues(self, last: Place, states: u64, next: Place) -> bool {
        let end = last.block * self.size + last.state + states;
        end == next.block * self.size + next.state && (self.linear || last.block == next.block)
    }

    /// Tells whether `next` is the same range of the next block, after `blocks` blocks of `states` states.
    fn repeats(self, last: Place, states: u64, blocks: u64, next: Place) -> bool {
        if self.linear {
            return self.continues(last, states * blocks, next);
        }
        next.block == last.block + blocks && next.state == last.state
    }
}

/// Cuts the token axis at both sides' blocks, and joins again what is adjacent on both sides, whatever the order of the
/// tables.
/// With `open`, the first and the last block of each range stay separate, so that slices of another range can join
/// them. Costs O(cuts) time. If the destination's table lists its blocks in memory order, it takes memory only for the
/// resulting segments.
pub(crate) fn make(class: Class, open: bool, lookups: Sides<Lookup<'_>>) -> Vec<Segment> {
    let states_outside = class.states_outside;
    let cuts = || {
        let cuts =
            class.range.cuts().map(|cut| Segment { at: Sides::of(|side| lookups[side].place(cut.at[side])), ..cut });
        // If the stride of blocks is smaller than that of states, each single state may continue in the next block.
        cuts.flat_map(move |cut| states(cut, states_outside))
    };
    // Order by the destination, where each block occurs only once, so that segments that join are next to each other.
    let in_memory = |segment: &Segment| match (states_outside, segment.at.dst) {
        (false, Place { block, state }) => (block, state),
        (true, Place { block, state }) => (state, block),
    };
    let mut joiner = Joiner::new(class);
    if cuts().is_sorted_by_key(|cut| in_memory(&cut)) {
        cuts().for_each(|cut| joiner.push(cut));
    } else {
        let mut segments: Vec<Segment> = cuts().collect();
        segments.sort_unstable_by_key(in_memory);
        segments.into_iter().for_each(|cut| joiner.push(cut));
    }
    match open {
        false => joiner.finish(),
        true => joiner.finish_open(),
    }
}

/// Joins segments in the order of the destination's memory: first along the states, then from block to block.
struct Joiner {
    blocks: Sides<Blocks>,
    along_states: bool,
    from_block_to_block: bool,
    /// The segment that may still continue along its states.
    latest: Option<Segment>,
    done: Vec<Segment>,
}

impl Joiner {
    fn new(class: Class) -> Self {
        Self {
            blocks: Sides::of(|side| Blocks { size: class.range.block[side], linear: class.linear[side] }),
            along_states: !class.states_outside,
            from_block_to_block: !both(|side| class.linear[side]),
            latest: None,
            done: Vec::new(),
        }
    }

    fn push(&mut self, next: Segment) {
        let blocks = self.blocks;
        if let Some(last) = &mut self.latest
            && self.along_states
            && last.is_dense()
            && next.is_dense()
            && both(|side| blocks[side].continues(last.at[side], last.states, next.at[side]))
        {
            last.states += next.states;
            return;
        }
        if let Some(whole) = self.latest.replace(next) {
            self.settle(whole);
        }
    }

    /// Adds a segment that cannot continue along its states.
    fn settle(&mut self, next: Segment) {
        let blocks = self.blocks;
        if let Some(last) = self.done.last_mut()
            && self.from_block_to_block
            && last.states == next.states
            && last.is_dense()
            && next.is_dense()
            && both(|side| blocks[side].repeats(last.at[side], last.states, last.blocks, next.at[side]))
        {
            last.blocks += 1;
            return;
        }
        self.done.push(next);
    }

    fn finish(mut self) -> Vec<Segment> {
        if let Some(last) = self.latest.take() {
            self.settle(last);
        }
        self.done
    }

    /// Keeps the first and the last block of each segment separate, so that slices of another piece can join them.
    fn finish_open(self) -> Vec<Segment> {
        let blocks = self.blocks;
        let single_states = !self.from_block_to_block && both(|side| blocks[side].size == 1);
        let mut open = Vec::new();
        for mut whole in self.finish() {
            if single_states {
                (whole.states, whole.blocks) = (1, whole.states);
            }
            let last = whole.blocks - 1;
            for part in [0..1, 1..last, last.max(1)..whole.blocks] {
                if !part.is_empty() {
                    let at = |side| blocks[side].further(whole.at[side], whole.states, part.start);
                    open.push(Segment { at: Sides::of(at), blocks: part.end - part.start, ..whole });
                }
            }
        }
        open
    }
}

fn states(segment: Segment, apart: bool) -> impl Iterator<Item = Segment> {
    let [outer, inner] = segment.strides;
    let count = if apart { outer.count * inner.count * segment.states } else { 1 };
    (0..count).map(move |i| match apart {
        false => segment,
        true => {
            let (stripe, state) = (i / segment.states, i % segment.states);
            let at = |side| {
                let steps = stripe / inner.count * outer.stride(side) + stripe % inner.count * inner.stride(side);
                let place: Place = segment.at[side];
                Place { state: place.state + steps + state, ..place }
            };
            Segment { at: Sides::of(at), states: 1, strides: [Loop::ONCE; 2], blocks: 1 }
        }
    })
}
