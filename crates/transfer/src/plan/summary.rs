//! What a bound plan amounts to, for people: bytes, chunks, and how long the chunks are.

use std::collections::BTreeMap;

use super::bind::{BoundPlan, BoundRoute};

/// How many chunks there are of each length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkHistogram(BTreeMap<u64, u64>);

impl ChunkHistogram {
    /// Length in bytes and number of chunks, shortest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(length, chunks)| (*length, *chunks))
    }

    /// The shortest and the longest chunk in bytes, if there is any.
    pub fn range(&self) -> Option<(u64, u64)> {
        Some((*self.0.first_key_value()?.0, *self.0.last_key_value()?.0))
    }

    fn add(&mut self, route: &BoundRoute) {
        for count in route.chunk_counts() {
            *self.0.entry(count.length).or_default() += count.chunks;
        }
    }
}

/// Totals of a bound plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes that move.
    pub bytes: u64,
    /// Chunks they move in.
    pub chunks: u64,
    /// How long the chunks are.
    pub histogram: ChunkHistogram,
}

impl BoundPlan {
    /// Totals over all routes.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            bytes: self.bytes(),
            chunks: self.chunks(),
            histogram: ChunkHistogram::default(),
        };
        for route in &self.routes {
            summary.histogram.add(route);
        }
        summary
    }
}
