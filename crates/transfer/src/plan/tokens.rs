//! The token axis: which states travel, and where both sides' blocks cut them.

use transload_layout::spec::{Spec, States};

use super::request::Request;

/// States of one spec that travel, and how many a block of each side holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StateRange {
    /// The first state, counted from the sequence's start.
    pub(super) first: u64,
    /// One past the last.
    pub(super) end: u64,
    /// States per block of the source.
    pub(super) src_block: u64,
    /// States per block of the destination.
    pub(super) dst_block: u64,
}

impl StateRange {
    /// The states of `spec` that a request moves.
    ///
    /// A state of k tokens travels if its last token is in the range; an unfinished one does not exist.
    /// Windows and chunks move only what is still needed. Recurrent state is one state in one block.
    pub(super) fn of(spec: &Spec, request: &Request, src_tokens: u64, dst_tokens: u64) -> Self {
        let end = request.start + request.tokens;
        match spec.geometry().states {
            States::Sequence => Self {
                first: 0,
                end: u64::from(request.tokens > 0),
                src_block: 1,
                dst_block: 1,
            },
            States::PerTokens(tokens) => {
                let needed = spec.first_token_needed(request.start, end);
                let end = end / tokens;
                Self {
                    first: (needed / tokens).min(end),
                    end,
                    src_block: src_tokens / tokens,
                    dst_block: dst_tokens / tokens,
                }
            }
        }
    }

    /// States per block of each side.
    pub(super) fn blocks(self) -> (u64, u64) {
        (self.src_block, self.dst_block)
    }

    /// The first end of a block of either side at or after a state.
    pub(super) fn block_end_from(self, state: u64) -> u64 {
        let next = |block: u64| state.div_ceil(block) * block;
        next(self.src_block).min(next(self.dst_block))
    }

    /// The last end of a block of either side at or before a state.
    pub(super) fn block_end_until(self, state: u64) -> u64 {
        let last = |block: u64| state / block * block;
        last(self.src_block).max(last(self.dst_block))
    }

    /// Stretches of states inside one block of each side, in token order.
    pub(super) fn cuts(self) -> impl Iterator<Item = Cut> {
        let mut state = self.first;
        std::iter::from_fn(move || {
            if state >= self.end {
                return None;
            }
            let cut = Cut {
                src_entry: state / self.src_block,
                src_state: state % self.src_block,
                dst_entry: state / self.dst_block,
                dst_state: state % self.dst_block,
                states: 0,
            };
            let states = (self.src_block - cut.src_state)
                .min(self.dst_block - cut.dst_state)
                .min(self.end - state);
            state += states;
            Some(Cut { states, ..cut })
        })
    }

    /// How many [`cuts`](Self::cuts) there are.
    pub(super) fn segments(self) -> u64 {
        if self.first >= self.end {
            return 0;
        }
        // Ends of blocks inside the stretch, those that both sides have counted once.
        let inside = |block: u64| (self.end - 1) / block - self.first / block;
        let (mut a, mut b) = (self.src_block, self.dst_block);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let both = (self.src_block / a).checked_mul(self.dst_block);
        1 + inside(self.src_block) + inside(self.dst_block) - both.map_or(0, inside)
    }

    /// The entries of a block table that these states touch, on a side with `block` states a block.
    pub(super) fn entries(self, block: u64) -> std::ops::Range<u64> {
        if self.first >= self.end {
            return 0..0;
        }
        self.first / block..(self.end - 1) / block + 1
    }
}

/// States that lie in one block of the source and in one of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Entry of the source's block table.
    pub(super) src_entry: u64,
    /// First state in that block.
    pub(super) src_state: u64,
    /// Entry of the destination's block table.
    pub(super) dst_entry: u64,
    /// First state in that block.
    pub(super) dst_state: u64,
    /// How many states.
    pub(super) states: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(
        first: u64,
        end: u64,
        src_block: u64,
        dst_block: u64,
    ) -> Vec<(u64, u64, u64, u64, u64)> {
        let range = StateRange {
            first,
            end,
            src_block,
            dst_block,
        };
        range
            .cuts()
            .map(|c| (c.src_entry, c.src_state, c.dst_entry, c.dst_state, c.states))
            .collect()
    }

    #[test]
    fn block_sizes_that_do_not_divide_are_cut_at_both_ends() {
        assert_eq!(
            cuts(0, 7, 3, 2),
            [
                (0, 0, 0, 0, 2),
                (0, 2, 1, 0, 1),
                (1, 0, 1, 1, 1),
                (1, 1, 2, 0, 2),
                (2, 0, 3, 0, 1)
            ]
        );
    }

    #[test]
    fn segments_are_counted_as_they_are_cut() {
        for (src_block, dst_block) in [(3, 2), (4, 6), (16, 64), (1, 5), (7, 7)] {
            for (first, end) in [(0, 0), (0, 1), (5, 5), (0, 64), (3, 50), (12, 49), (63, 64)] {
                let range = StateRange {
                    first,
                    end,
                    src_block,
                    dst_block,
                };
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
