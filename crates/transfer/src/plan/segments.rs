//! Segments: the token axis cut at both sides' blocks, and joined again where blocks are neighbours.

use super::route::Steps;
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
            return Place {
                block: at / self.size,
                state: at % self.size,
            };
        }
        Place {
            block: place.block + blocks,
            ..place
        }
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
pub(super) fn make(
    range: StateRange,
    steps: Steps,
    open: bool,
    src: &Lookup<'_>,
    dst: &Lookup<'_>,
) -> Vec<Segment> {
    let cuts = || {
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
        // Where blocks lie closer together than states, it is each state that may go on in the next
        // block.
        cuts.flat_map(move |cut| states(cut, steps.states_outside))
    };
    // By the destination, which lists a block only once: what joins is next to each other there.
    let in_memory = |segment: &Segment| match steps.states_outside {
        false => (segment.dst.block, segment.dst.state),
        true => (segment.dst.state, segment.dst.block),
    };
    let mut joiner = Joiner::new(range, steps);
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
    src: Blocks,
    dst: Blocks,
    along_states: bool,
    from_block_to_block: bool,
    /// What may still go on along its states.
    latest: Option<Segment>,
    done: Vec<Segment>,
}

impl Joiner {
    fn new(range: StateRange, steps: Steps) -> Self {
        let (src, dst) = (
            Blocks {
                size: range.src_block,
                linear: steps.linear.0,
            },
            Blocks {
                size: range.dst_block,
                linear: steps.linear.1,
            },
        );
        Self {
            src,
            dst,
            along_states: !steps.states_outside,
            from_block_to_block: !(src.linear && dst.linear),
            latest: None,
            done: Vec::new(),
        }
    }

    fn push(&mut self, next: Segment) {
        if let Some(last) = &mut self.latest
            && self.along_states
            && self.src.go_on(last.src, last.states, next.src)
            && self.dst.go_on(last.dst, last.states, next.dst)
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
        if let Some(last) = self.done.last_mut()
            && self.from_block_to_block
            && last.states == next.states
            && self
                .src
                .repeat(last.src, last.states, last.blocks, next.src)
            && self
                .dst
                .repeat(last.dst, last.states, last.blocks, next.dst)
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
        let (src, dst) = (self.src, self.dst);
        let single_states = !self.from_block_to_block && (src.size, dst.size) == (1, 1);
        let mut open = Vec::new();
        for segment in self.finish() {
            let whole = match single_states {
                true => Segment {
                    states: 1,
                    blocks: segment.states,
                    ..segment
                },
                false => segment,
            };
            let part = |first, blocks| Segment {
                src: src.further(whole.src, whole.states, first),
                dst: dst.further(whole.dst, whole.states, first),
                blocks,
                ..whole
            };
            let last = whole.blocks - 1;
            open.push(part(0, 1));
            if last > 1 {
                open.push(part(1, last - 1));
            }
            if last > 0 {
                open.push(part(last, 1));
            }
        }
        open
    }
}

/// A segment as it is, or its states one by one.
fn states(segment: Segment, apart: bool) -> impl Iterator<Item = Segment> {
    let (count, each) = match apart {
        false => (1, segment.states),
        true => (segment.states, 1),
    };
    let at = |place: Place, i| Place {
        state: place.state + i,
        ..place
    };
    (0..count).map(move |i| Segment {
        src: at(segment.src, i),
        dst: at(segment.dst, i),
        states: each,
        blocks: 1,
    })
}
