//! Segments: the token axis cut at both sides' blocks, and joined again where blocks are neighbours.

use super::route::Class;
use super::table::Lookup;
use super::tokens::StateRange;

/// A stretch of states in one block of each side, or in neighbouring blocks of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) src: Place,
    pub(super) dst: Place,
    pub(super) states: u64,
    /// How many blocks of each side, with `states` states in each.
    pub(super) blocks: u64,
}

/// A state of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) block: u64,
    pub(super) state: u64,
}

/// What a side's blocks are like for one class of slices.
#[derive(Clone, Copy)]
struct Blocks {
    /// States in each.
    size: u64,
    /// Whether a block goes on where the one before it in memory ends.
    linear: bool,
}

impl Blocks {
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
pub(super) fn make(
    range: StateRange,
    class: Class,
    src: &Lookup<'_>,
    dst: &Lookup<'_>,
) -> Vec<Segment> {
    let cuts = range.cuts().map(|cut| Segment {
        src: Place {
            block: src.block(cut.src_entry),
            state: cut.src_state,
        },
        dst: Place {
            block: dst.block(cut.dst_entry),
            state: cut.dst_state,
        },
        states: cut.states,
        blocks: 1,
    });
    // Where blocks lie closer together than states, it is each state that may go on in the next block.
    let mut segments: Vec<Segment> = match class.states_outside {
        false => cuts.collect(),
        true => cuts.flat_map(states).collect(),
    };
    let in_memory = |segment: &Segment| match class.states_outside {
        false => (segment.src.block, segment.src.state),
        true => (segment.src.state, segment.src.block),
    };
    if !segments.is_sorted_by_key(in_memory) {
        segments.sort_unstable_by_key(in_memory);
    }
    let src = Blocks {
        size: range.src_block,
        linear: class.linear.0,
    };
    let dst = Blocks {
        size: range.dst_block,
        linear: class.linear.1,
    };
    if !class.states_outside {
        segments.dedup_by(|next, last| {
            let join = src.go_on(last.src, last.states, next.src)
                && dst.go_on(last.dst, last.states, next.dst);
            if join {
                last.states += next.states;
            }
            join
        });
    }
    if !(src.linear && dst.linear) {
        segments.dedup_by(|next, last| {
            let join = last.states == next.states
                && src.repeat(last.src, last.states, last.blocks, next.src)
                && dst.repeat(last.dst, last.states, last.blocks, next.dst);
            if join {
                last.blocks += next.blocks;
            }
            join
        });
    }
    segments
}

/// A segment's states one by one.
fn states(segment: Segment) -> impl Iterator<Item = Segment> {
    let at = |place: Place, i| Place {
        state: place.state + i,
        ..place
    };
    (0..segment.states).map(move |i| Segment {
        src: at(segment.src, i),
        dst: at(segment.dst, i),
        states: 1,
        blocks: 1,
    })
}
