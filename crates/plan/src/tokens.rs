//! The token axis: the states that travel, which of them two ranks have, and where both sides' blocks cut them.

use std::ops::Range;

use transload_layout::internal::least_common_multiple;
use transload_layout::spec::{Spec, States};
use transload_layout::{Group, Side};

use crate::deal::Deal;
use crate::program::Loop;
use crate::request::Request;
use crate::sides::Sides;

/// The states of one spec that travel, and how each side keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StateRange {
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// The states of a block on one rank.
    pub(crate) block: Sides<u64>,
    /// The rank on each side that has the states. Ranges of a group have the first ranks, in place of which routes set their
    /// own.
    pub(crate) deal: Sides<Deal>,
}

/// The states that two ranks have in common within one stripe of the side with the longer stripes: either several whole
/// stripes of the other side, or one stripe or a part of it.
struct Run {
    /// The states of each stripe.
    states: u64,
    /// The steps from stripe to stripe, in states.
    stripes: Loop,
    end: u64,
}

impl StateRange {
    /// Returns the states of `spec` that a request moves between two groups.
    /// A state of k tokens travels if its last token is in the range; an unfinished one does not exist. Windows and
    /// chunks only move what is still needed. Recurrent state is one state in one block.
    pub(crate) fn of(spec: &Spec, request: &Request, groups: Sides<&Group>) -> Self {
        let end = request.start + request.tokens;
        match spec.geometry().states {
            States::Sequence => Self {
                first: 0,
                end: u64::from(request.tokens > 0),
                block: Sides { src: 1, dst: 1 },
                deal: Sides { src: Deal::of_one(1), dst: Deal::of_one(1) },
            },
            States::PerTokens(tokens) => {
                let needed = spec.first_token_needed(request.start, end);
                let end = end / tokens;
                let deal = groups.map(|group| Deal {
                    ranks: group.dcp().into(),
                    rank: 0,
                    stripe: group.interleave() / tokens,
                });
                let block = groups.map(|group| group.block_size() / tokens);
                Self { first: (needed / tokens).min(end), end, block, deal }
            }
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.first >= self.end
    }

    /// Returns the states of an entry of a side's block table.
    pub(crate) fn entry(self, side: Side) -> u64 {
        self.block[side] * self.deal[side].ranks
    }

    /// Returns the number of states that both ranks have.
    pub(crate) fn count(self) -> u64 {
        let all = self.end.saturating_sub(self.first);
        if self.deal.is_trivial() {
            return all;
        }
        let states = |first, end| {
            let runs = Self { first, end, ..self }.runs();
            runs.map(|run| run.states * run.stripes.count).sum::<u64>()
        };
        let period = self.deal.period();
        let (periods, rest) = (all / period, all % period);
        let each = if periods > 0 { states(self.first, self.first + period) } else { 0 };
        periods * each + states(self.end - rest, self.end)
    }

    /// Returns the first end of a block of either side at or after a state.
    pub(crate) fn block_end_from(self, state: u64) -> u64 {
        let next = Sides::of(|side| state.div_ceil(self.entry(side)) * self.entry(side));
        next.src.min(next.dst)
    }

    /// Returns the last end of a block of either side at or before a state.
    pub(crate) fn block_end_until(self, state: u64) -> u64 {
        let last = Sides::of(|side| state / self.entry(side) * self.entry(side));
        last.src.max(last.dst)
    }

    /// Cuts the states that both ranks have at the ends of both sides' blocks, and returns them in token order. Places
    /// are block table entries.
    ///
    /// Stripes at equal distances are one segment, however short they are.
    pub(crate) fn cuts(self) -> impl Iterator<Item = Segment> {
        let period = self.deal.period();
        let mut state = self.first;
        std::iter::from_fn(move || {
            let first = self.common_from(state)?;
            let at = Sides::of(|side| {
                let position = self.deal[side].position(first);
                Place { block: position / self.block[side], state: position % self.block[side] }
            });
            let ends = Sides::of(|side| match self.deal[side].ranks {
                1 => first + self.block[side] - at[side].state,
                _ => first - first % self.entry(side) + self.entry(side),
            });
            let edge = ends.src.min(ends.dst).min(self.end);
            let run = self.run(first, edge);
            state = run.end;
            let mut segment = Segment { at, states: run.states, strides: [Loop::ONCE, run.stripes], blocks: 1 };
            if run.end < edge && self.common_from(run.end) == first.checked_add(period) {
                let count = (edge - run.end) / period + 1;
                state += (count - 1) * period;
                let again = Loop::new(count, self.deal.map(|deal| period / deal.ranks));
                if run.stripes.count == 1 && again.src == run.states && again.dst == run.states {
                    segment.states *= count;
                } else if count > 1 {
                    segment.strides[0] = again;
                }
            }
            Some(segment)
        })
    }

    /// Returns the first state at or after this one that travels and that both ranks have. Takes a step for each stripe
    /// that it skips of the side with fewer stripes.
    fn common_from(self, mut state: u64) -> Option<u64> {
        while state < self.end {
            let next = self.deal.dst.first_from(self.deal.src.first_from(state));
            if next == state {
                return Some(state);
            }
            state = next;
        }
        None
    }

    /// Returns the states from `first`, which both ranks have, up to `edge` or the end of the longer stripe.
    fn run(self, first: u64, edge: u64) -> Run {
        if self.deal.is_trivial() {
            return Run { states: edge - first, stripes: Loop::ONCE, end: edge };
        }
        let (short, long) = match self.deal.src.stripe <= self.deal.dst.stripe {
            true => (Side::Source, Side::Destination),
            false => (Side::Destination, Side::Source),
        };
        let deal = self.deal[short];
        let edge = edge.min(self.deal[long].stripe_end(first));
        let states = deal.stripe_end(first).min(edge) - first;
        // Between two stripes of a rank lie those of the other ranks. Only the side with the longer stripe has these
        // states too.
        let count = if states == deal.stripe { (edge - first - states) / deal.turn() + 1 } else { 1 };
        let mut strides = Sides { src: states, dst: states };
        strides[long] = deal.turn();
        let stripes = if count > 1 { Loop::new(count, strides) } else { Loop::ONCE };
        Run { states, stripes, end: first + (count - 1) * deal.turn() + states }
    }

    fn runs(self) -> impl Iterator<Item = Run> {
        let run = move |state| self.common_from(state).map(|first| self.run(first, self.end));
        std::iter::successors(run(self.first), move |last| run(last.end))
    }

    /// Returns the number of ranges of states inside one table entry of each side.
    pub(crate) fn segments(self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        // Ends of entries inside the range. Those that both sides share are counted once.
        let inside = |entry: u64| (self.end - 1) / entry - self.first / entry;
        let Sides { src, dst } = Sides::of(|side| self.entry(side));
        let common = least_common_multiple(src, dst);
        1 + inside(src) + inside(dst) - common.map_or(0, inside)
    }

    /// Returns the maximum number of [cuts](Self::cuts) of this many consecutive parts of the range together.
    pub(crate) fn most_cuts(self, parts: u64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let segments = self.segments().saturating_add(parts - 1);
        if self.deal.is_trivial() {
            return segments;
        }
        // If each period has one run, a segment is a loop over periods, and one more at either end where a period is cut
        // off. If each has several, each run is a segment. A part may begin and end inside of a stripe.
        let (all, period) = (self.end - self.first, self.deal.period());
        let of_period = Self { end: self.first + period.min(all), ..self }.runs().count() as u64;
        let several = if of_period > 1 { of_period.saturating_mul(all / period + 2 * parts) } else { 0 };
        segments.saturating_mul(3).saturating_add(several).saturating_add(2 * parts)
    }

    /// Estimates the number of runs in a period, or in the range if that is shorter: there are three times as many at most.
    /// A [count](Self::count) takes a few steps for each.
    pub(crate) fn most_runs(self) -> u64 {
        if self.deal.is_trivial() {
            return 1;
        }
        let longest = self.deal.src.turn().max(self.deal.dst.turn());
        let stretch = self.deal.period().min(self.end.saturating_sub(self.first));
        stretch.div_ceil(longest).max(1)
    }

    /// Returns the entries of a side's block table that these states use.
    pub(crate) fn entries(self, side: Side) -> Range<u64> {
        if self.is_empty() {
            return 0..0;
        }
        self.first / self.entry(side)..(self.end - 1) / self.entry(side) + 1
    }
}

/// States in one block of each side, or in neighbouring blocks of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) at: Sides<Place>,
    /// The number of consecutive states.
    pub(crate) states: u64,
    /// Where there are more such ranges in the block: the steps from one to the next in states, outermost first.
    pub(crate) strides: [Loop; 2],
    /// The number of blocks on each side, with `states` states in each.
    pub(crate) blocks: u64,
}

impl Segment {
    /// Tells whether the states are consecutive.
    pub(crate) fn is_dense(&self) -> bool {
        self.strides.iter().all(|step| step.count == 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// A block of its memory, or an entry of the block table before the look-up.
    pub(crate) block: u64,
    pub(crate) state: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, end: u64, src: u64, dst: u64) -> StateRange {
        let block = Sides { src, dst };
        StateRange { first, end, block, deal: block.map(Deal::of_one) }
    }

    fn cuts(first: u64, end: u64, src_block: u64, dst_block: u64) -> Vec<(u64, u64, u64, u64, u64)> {
        let range = range(first, end, src_block, dst_block);
        range
            .cuts()
            .map(|Segment { at: Sides { src, dst }, states, .. }| (src.block, src.state, dst.block, dst.state, states))
            .collect()
    }

    #[test]
    fn block_sizes_that_do_not_divide_are_cut_at_both_ends() {
        assert_eq!(
            cuts(0, 7, 3, 2),
            [(0, 0, 0, 0, 2), (0, 2, 1, 0, 1), (1, 0, 1, 1, 1), (1, 1, 2, 0, 2), (2, 0, 3, 0, 1)]
        );
    }

    #[test]
    fn segments_are_counted_as_they_are_cut() {
        for (src_block, dst_block) in [(3, 2), (4, 6), (16, 64), (1, 5), (7, 7)] {
            for (first, end) in [(0, 0), (0, 1), (5, 5), (0, 64), (3, 50), (12, 49), (63, 64)] {
                let range = range(first, end, src_block, dst_block);
                assert_eq!(range.segments(), range.cuts().count() as u64, "{range:?}");
            }
        }
    }

    #[test]
    fn a_start_inside_a_block_counts_from_position_zero() {
        assert_eq!(cuts(5, 8, 4, 4), [(1, 1, 1, 1, 3)]);
        assert_eq!(cuts(5, 5, 4, 4), []);
    }

    /// Returns the block, the state in it and the rank of a state, by vLLM's formula.
    fn dealt(state: u64, block: u64, deal: Deal) -> (u64, u64, u64) {
        let entry = block * deal.ranks;
        let at = state % entry;
        let slot = at / deal.turn() * deal.stripe + at % deal.stripe;
        (state / entry, slot, at / deal.stripe % deal.ranks)
    }

    /// Returns the states of all segments, in order, as (block, state) at the source and at the destination.
    fn places(range: StateRange) -> Vec<[(u64, u64); 2]> {
        let mut places = Vec::new();
        for Segment { at, states, strides: [outer, inner], .. } in range.cuts() {
            for (i, j, k) in
                (0..outer.count).flat_map(|i| (0..inner.count).flat_map(move |j| (0..states).map(move |k| (i, j, k))))
            {
                let place = |at: Place, outer, inner| (at.block, at.state + i * outer + j * inner + k);
                places.push([place(at.src, outer.src, inner.src), place(at.dst, outer.dst, inner.dst)]);
            }
        }
        places
    }

    #[test]
    fn every_state_that_two_ranks_have_is_in_a_segment_of_both() {
        // Blocks, ranks and stripes of a side.
        let sides =
            [(4, 1, 4), (6, 1, 6), (12, 2, 12), (12, 3, 4), (12, 3, 1), (6, 4, 2), (8, 8, 1), (16, 4, 16), (5, 2, 5)];
        for (src, dst) in sides.iter().flat_map(|src| sides.iter().map(move |dst| (src, dst))) {
            for (first, end) in [(0, 0), (0, 1), (5, 5), (0, 64), (3, 50), (12, 49), (63, 64), (7, 400)] {
                for (src_rank, dst_rank) in (0..src.1).flat_map(|src| (0..dst.1).map(move |dst| (src, dst))) {
                    let deal = Sides {
                        src: Deal { ranks: src.1, rank: src_rank, stripe: src.2 },
                        dst: Deal { ranks: dst.1, rank: dst_rank, stripe: dst.2 },
                    };
                    let range = StateRange { first, end, block: Sides { src: src.0, dst: dst.0 }, deal };
                    let expected = (first..end).filter_map(|state| {
                        let (block, at, rank) = dealt(state, src.0, deal.src);
                        let (dst_block, dst_at, of) = dealt(state, dst.0, deal.dst);
                        ((rank, of) == (src_rank, dst_rank)).then_some([(block, at), (dst_block, dst_at)])
                    });
                    let expected: Vec<_> = expected.collect();
                    assert_eq!(places(range), expected, "{range:?}");
                    assert_eq!(range.count(), expected.len() as u64, "{range:?}");
                    assert!(expected.is_empty() || deal.meet(), "{range:?}");
                    assert!(end < 400 || !deal.meet() || !expected.is_empty(), "{range:?}");
                    let made = range.cuts().count() as u64;
                    assert!(made <= range.most_cuts(1), "{made} cuts, {range:?}");
                }
            }
        }
    }

    /// Short stripes are loops: a segment for each block, not one for each stripe.
    #[test]
    fn stripes_of_a_block_are_one_segment() {
        let side = |block, ranks, stripe| (block, Deal { ranks, rank: 0, stripe });
        for (src, dst, segments) in [
            (side(16, 1, 16), side(16, 8, 1), 64),
            (side(16, 8, 1), side(16, 1, 16), 64),
            (side(16, 2, 1), side(16, 4, 1), 32),
            (side(16, 8, 1), side(64, 8, 1), 8),
            (side(16, 4, 1), side(64, 2, 16), 16),
            (side(64, 2, 16), side(64, 8, 16), 8),
            (side(16, 8, 16), side(16, 1, 16), 8),
        ] {
            let (block, deal) = (Sides { src: src.0, dst: dst.0 }, Sides { src: src.1, dst: dst.1 });
            let range = StateRange { first: 0, end: 1024, block, deal };
            assert_eq!(range.cuts().count(), segments, "{range:?}");
        }
    }
}
