//! The division of work among source ranks that hold the same bytes.
//!
//! [`Partition::senders`] determines which replicas serve a destination rank. Each of these sends a range of the layers
//! that the two ranks have in common. In two cases they divide tokens instead, at the ends of the destination's blocks:
//! - Blocks are outside layers in the destination's memory. The destination's order counts since it orders the stream.
//!   There, bytes may be contiguous from layer to layer inside a block, and a cut between layers would split a chunk.
//! - There are fewer layers than replicas.
//!
//! Data within a single block of the destination is still divided by layers. A single layer of a single block is sent
//! by the first replica.
//!
//! [`Partition::senders`]: transload_layout::Partition::senders

use std::ops::Range;

use transload_layout::{Share, Side};

use crate::tokens::StateRange;

/// Returns the layers (counted from the first common one) and the states that one replica sends.
pub(crate) fn divide(share: Share, layers: u64, states: StateRange, blocks_outside: bool) -> (Range<u64>, StateRange) {
    let blocks = states.entries(Side::Destination);
    let count = blocks.end - blocks.start;
    if count < 2 || !blocks_outside && layers >= u64::from(share.of) {
        return (share.stretch(layers), states);
    }
    let own = share.stretch(count);
    let bound = |block: u64| {
        let state = (blocks.start + block) * states.entry(Side::Destination);
        state.clamp(states.first, states.end)
    };
    let states = StateRange { first: bound(own.start), end: bound(own.end), ..states };
    (0..layers, states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deal::Deal;
    use crate::sides::Sides;

    /// Returns the part that each of `of` replicas sends of the states 3 to 50, in blocks of 8 at the destination.
    fn shares(of: u32, layers: u64, end: u64, blocks_outside: bool) -> Vec<(Range<u64>, u64, u64)> {
        let block = Sides { src: 5, dst: 8 };
        let states = StateRange { first: 3, end, block, deal: block.map(Deal::of_one) };
        let shares = (0..of).map(|index| {
            let (layers, own) = divide(Share { index, of }, layers, states, blocks_outside);
            assert_eq!(own.block, states.block);
            (layers, own.first, own.end)
        });
        shares.collect()
    }

    #[test]
    fn layers_are_divided_where_there_are_enough() {
        assert_eq!(shares(2, 5, 50, false), [(0..3, 3, 50), (3..5, 3, 50)]);
    }

    #[test]
    fn tokens_are_divided_where_blocks_lie_outside_layers_or_layers_are_few() {
        let tokens = [(0..5, 3, 32), (0..5, 32, 50)];
        assert_eq!(shares(2, 5, 50, true), tokens);
        let few = [(0..2, 3, 24), (0..2, 24, 40), (0..2, 40, 50)];
        assert_eq!(shares(3, 2, 50, false), few);
        // More replicas than blocks: some send nothing.
        let two = [(0..2, 3, 8), (0..2, 8, 9), (0..2, 9, 9)];
        assert_eq!(shares(3, 2, 9, false), two);
    }

    #[test]
    fn one_block_is_divided_by_layers_and_one_layer_of_it_not_at_all() {
        assert_eq!(shares(2, 5, 8, true), [(0..3, 3, 8), (3..5, 3, 8)]);
        assert_eq!(shares(3, 2, 8, false), [(0..1, 3, 8), (1..2, 3, 8), (2..2, 3, 8)]);
        assert_eq!(shares(2, 1, 8, false), [(0..1, 3, 8), (1..1, 3, 8)]);
    }

    #[test]
    fn nothing_is_divided_into_nothing() {
        assert_eq!(shares(2, 4, 3, true), [(0..2, 3, 3), (2..4, 3, 3)]);
    }
}
