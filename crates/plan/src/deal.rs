//! How a side deals the states of a sequence out to ranks (decode context parallelism).
//!
//! A side with several ranks for the states gives a *stripe* of consecutive states to each of them in turn. A rank keeps
//! its stripes one after another, so to its blocks they are a sequence of their own. A side that does not deal anything out
//! has one such rank, and its stripes are its blocks.

use transload_layout::Share;
use transload_layout::internal::{greatest_common_divisor, least_common_multiple};

use crate::sides::Sides;

/// The states that one rank has of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deal {
    /// The number of ranks that take turns.
    pub(crate) ranks: u64,
    /// One of these ranks.
    pub(crate) rank: u64,
    /// The states of a stripe.
    pub(crate) stripe: u64,
}

impl Deal {
    /// Returns the deal of a side on which every rank has all states.
    pub(crate) fn of_one(block: u64) -> Self {
        Self { ranks: 1, rank: 0, stripe: block }
    }

    /// Returns the number of states from the start of a stripe of the rank to the start of its next one.
    pub(crate) fn turn(self) -> u64 {
        self.ranks * self.stripe
    }

    /// Returns the rank's first state at or after this one.
    pub(crate) fn first_from(self, state: u64) -> u64 {
        if self.ranks == 1 {
            return state;
        }
        let (at, own) = (state % self.turn(), self.rank * self.stripe);
        match at {
            _ if at < own => state - at + own,
            _ if at < own + self.stripe => state,
            _ => state - at + self.turn() + own,
        }
    }

    /// Returns the end of the stripe with this state.
    pub(crate) fn stripe_end(self, state: u64) -> u64 {
        state - state % self.stripe + self.stripe
    }

    /// Returns the position of a state of the rank among all states of the rank.
    pub(crate) fn position(self, state: u64) -> u64 {
        match self.ranks {
            1 => state,
            _ => state / self.turn() * self.stripe + state % self.stripe,
        }
    }
}

impl Sides<Deal> {
    /// Tells whether no side deals states out.
    pub(crate) fn is_trivial(self) -> bool {
        self.src.ranks == 1 && self.dst.ranks == 1
    }

    /// Returns the number of states after which the pattern of common states repeats.
    pub(crate) fn period(self) -> u64 {
        // A period that exceeds 64 bits is longer than any sequence, so any other length beyond that does as well.
        least_common_multiple(self.src.turn(), self.dst.turn()).unwrap_or(u64::MAX)
    }

    /// Returns an entry for each pair of a source and a destination rank, with the destination ranks innermost. Pairs
    /// without a common state have `None`. The others have the number of the destination rank among those that have
    /// states in common with the source rank.
    pub(crate) fn meetings(self) -> Vec<Option<Share>> {
        let mut meetings = Vec::new();
        for src in 0..self.src.ranks {
            let pairs = (0..self.dst.ranks).map(|dst| {
                let Sides { src: from, dst: to } = self;
                Sides { src: Deal { rank: src, ..from }, dst: Deal { rank: dst, ..to } }
            });
            let meets: Vec<bool> = pairs.map(Self::meet).collect();
            let of = meets.iter().filter(|meets| **meets).count() as u32;
            let mut met = 0..of;
            meetings.extend(meets.into_iter().map(|meets| {
                let index = if meets { met.next() } else { None };
                index.map(|index| Share { index, of })
            }));
        }
        meetings
    }

    /// Tells whether the two ranks have any state of a long sequence in common.
    pub(crate) fn meet(self) -> bool {
        let common = greatest_common_divisor(self.src.turn(), self.dst.turn());
        let starts = self.map(|deal| deal.rank * deal.stripe % common);
        let apart = (starts.dst + common - starts.src) % common;
        apart < self.src.stripe || common - apart < self.dst.stripe
    }
}
