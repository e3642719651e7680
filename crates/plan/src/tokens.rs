//! The token axis: the states that travel, and where both sides' blocks cut them.

use std::ops::Range;

use transload_layout::spec::{Spec, States};

use crate::request::Request;
use crate::sides::Sides;

/// The states of one spec that travel, and the number of states in a block of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StateRange {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) block: Sides<u64>,
}

impl StateRange {
    /// Returns the states of `spec` that a request moves, between blocks of this many tokens.
    /// A state of k tokens travels if its last token is in the range; an unfinished one does not exist. Windows and
    /// chunks only move what is still needed. Recurrent state is one state in one block.
    pub(crate) fn of(spec: &Spec, request: &Request, block_tokens: Sides<u64>) -> Self {
        let end = request.start + request.tokens;
        match spec.geometry().states {
            States::Sequence => Self { first: 0, end: u64::from(request.tokens > 0), block: Sides { src: 1, dst: 1 } },
            States::PerTokens(tokens) => {
                let needed = spec.first_token_needed(request.start, end);
                let end = end / tokens;
                Self { first: (needed / tokens).min(end), end, block: block_tokens.map(|block| block / tokens) }
            }
        }
    }

    pub(crate) fn count(self) -> u64 {
        self.end.saturating_sub(self.first)
    }

    /// Returns the first end of a block of either side at or after a state.
    pub(crate) fn block_end_from(self, state: u64) -> u64 {
        let next = self.block.map(|block| state.div_ceil(block) * block);
        next.src.min(next.dst)
    }

    /// Returns the last end of a block of either side at or before a state.
    pub(crate) fn block_end_until(self, state: u64) -> u64 {
        let last = self.block.map(|block| state / block * block);
        last.src.max(last.dst)
    }

    /// Returns the ranges of states inside one block of each side, in token order. Places are block table entries.
    pub(crate) fn cuts(self) -> impl Iterator<Item = Segment> {
        let mut state = self.first;
        std::iter::from_fn(move || {
            if state >= self.end {
                return None;
            }
            let at = self.block.map(|block| Place { block: state / block, state: state % block });
            let left = Sides::of(|side| self.block[side] - at[side].state);
            let states = left.src.min(left.dst).min(self.end - state);
            state += states;
            Some(Segment { at, states, blocks: 1 })
        })
    }

    pub(crate) fn segments(self) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        // Ends of blocks inside the range. Those that both sides share are counted once.
        let inside = |block: u64| (self.end - 1) / block - self.first / block;
        let Sides { src, dst } = self.block;
        let (mut a, mut b) = (src, dst);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let common = (src / a).checked_mul(dst);
        1 + inside(src) + inside(dst) - common.map_or(0, inside)
    }

    /// Returns the entries of a block table that these states use, on a side with `block` states in a block.
    pub(crate) fn entries(self, block: u64) -> Range<u64> {
        if self.count() == 0 {
            return 0..0;
        }
        self.first / block..(self.end - 1) / block + 1
    }
}

/// A range of states in one block of each side, or in neighbouring blocks of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) at: Sides<Place>,
    pub(crate) states: u64,
    /// The number of blocks on each side, with `states` states in each.
    pub(crate) blocks: u64,
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
        StateRange { first, end, block }
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
}
