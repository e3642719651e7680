//! Segments: the token axis cut at both sides' blocks, and joined again where blocks are neighbours.

use crate::route::Class;
use crate::sides::{Sides, both};
use crate::table::Lookup;
use crate::tokens::{Place, Segment};

/// What a side's blocks are like for some slices.
#[derive(Clone, Copy)]
struct Blocks {
    /// States in each.
    size: u64,
    /// Whether a block goes on where the one before it in memory ends.
    linear: bool,
}

impl Blocks {
    /// The place `blocks` blocks further on, in each of which there are `states` states.
    fn further(self, place: Place, states: u64, blocks: u64) -> Place {
        if self.linear {
            let at = place.block * self.size + place.state + states * blocks;
            return Place { block: at / self.size, state: at % self.size };
        }
        Place { block: place.block + blocks, ..place }
    }

    /// Whether `next` comes right after `states` states from `last`, along the states of one block
    /// or, where that is the same, into the next.
    fn go_on(self, last: Place, states: u64, next: Place) -> bool {
        let end = last.block * self.size + last.state + states;
        end == next.block * self.size + next.state && (self.linear || last.block == next.block)
    }

    /// Whether `next` is the same stretch of the next block, after `blocks` blocks of `states` states.
    fn repeat(self, last: Place, states: u64, blocks: u64, next: Place) -> bool {
        if self.linear {
            return self.go_on(last, states * blocks, next);
        }
        next.block == last.block + blocks && next.state == last.state
    }
}

/// Cuts the token axis at both sides' blocks, and joins what lies together on both sides again, in
/// whatever order the tables list it.
///
/// With `open`, the first and the last block of each stretch stay by themselves, for the slices of another
/// stretch to join them. Costs O(cuts) time; and memory for what is left only, where the destination's
/// table lists its blocks in the order of memory.
pub(crate) fn make(class: Class, open: bool, lookups: Sides<Lookup<'_>>) -> Vec<Segment> {
    let states_outside = class.states_outside;
    let cuts = || {
        let cuts =
            class.range.cuts().map(|cut| Segment { at: Sides::of(|side| lookups[side].place(cut.at[side])), ..cut });
        // Where blocks lie closer together than states, it is each state that may go on in the next
        // block.
        cuts.flat_map(move |cut| states(cut, states_outside))
    };
    // By the destination, which lists a block only once: what joins is next to each other there.
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

/// Joins segments that come in the order of the destination's memory: along the states first, and what comes
/// of that from block to block.
struct Joiner {
    blocks: Sides<Blocks>,
    along_states: bool,
    from_block_to_block: bool,
    /// What may still go on along its states.
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
            && both(|side| blocks[side].go_on(last.at[side], last.states, next.at[side]))
        {
            last.states += next.states;
            return;
        }
        if let Some(whole) = self.latest.replace(next) {
            self.settle(whole);
        }
    }

    /// Takes a segment that goes no further along its states.
    fn settle(&mut self, next: Segment) {
        let blocks = self.blocks;
        if let Some(last) = self.done.last_mut()
            && self.from_block_to_block
            && last.states == next.states
            && both(|side| blocks[side].repeat(last.at[side], last.states, last.blocks, next.at[side]))
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

    /// Finishes with the first and the last block of each segment apart, so that slices of another piece can join
    /// them.
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
                    open.push(Segment { at: Sides::of(at), states: whole.states, blocks: part.end - part.start });
                }
            }
        }
        open
    }
}

/// A segment as it is, or its states one by one.
fn states(segment: Segment, apart: bool) -> impl Iterator<Item = Segment> {
    let (count, states) = match apart {
        false => (1, segment.states),
        true => (segment.states, 1),
    };
    (0..count).map(move |i| Segment {
        at: segment.at.map(|place| Place { state: place.state + i, ..place }),
        states,
        blocks: 1,
    })
}
