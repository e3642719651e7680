//! The search for better layouts, and the cost of each. The cost is computed on as few tokens as determine that of all.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use transload::layout::document::Document;
use transload::layout::internal::least_common_multiple;
use transload::layout::spec::Attention;
use transload::layout::{Deployment, Rank, Side, Spec};
use transload::transfer::{Plan, Request};

use super::change::{Change, ORDERS, conv_layout};
use crate::commands::plan::blocks;
use crate::show::number;

const BLOCK_SIZES: [u64; 4] = [16, 32, 64, 128];

/// A change of both sides, and its cost for the busiest destination rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Suggestion {
    /// The change of the source, followed by that of the destination.
    pub(super) from: Change,
    pub(super) to: Change,
    #[serde(flatten)]
    pub(super) cost: Cost,
}

impl Suggestion {
    pub(super) fn changes(&self) -> usize {
        self.from.count() + self.to.count()
    }
}

/// The cost of a transfer for the busiest destination rank, with blocks scattered as in an engine that has run for a
/// while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Cost {
    pub(super) chunks: u64,
    pub(super) bytes: u64,
    /// The chunk length that carries most of the bytes.
    pub(super) chunk_bytes: u64,
}

impl Cost {
    /// Computes the cost. Returns `None` if nothing moves.
    fn of(lengths: &Lengths) -> Option<Self> {
        let bytes = |(length, chunks): (&u64, &u64)| length * chunks;
        let (chunk_bytes, _) = lengths.iter().max_by_key(|entry| bytes(*entry))?;
        Some(Self { chunks: lengths.values().sum(), bytes: lengths.iter().map(bytes).sum(), chunk_bytes: *chunk_bytes })
    }

    /// Formats the cost: `10,240 chunks of 8 KiB`, without the length if chunks differ.
    pub(super) fn text(&self) -> String {
        let chunks = number::count(self.chunks, "chunk");
        match self.chunks.checked_mul(self.chunk_bytes) == Some(self.bytes) {
            true => format!("{chunks} of {}", number::bytes(self.chunk_bytes)),
            false => chunks,
        }
    }
}

/// The transfer whose layouts are varied.
pub(super) struct Search<'a> {
    src: &'a Document,
    dst: &'a Document,
    request: Request,
    rank: Rank,
}

impl<'a> Search<'a> {
    pub(super) fn new(src: &'a Deployment, dst: &'a Deployment, request: &Request) -> Option<Self> {
        let plan = Plan::compile(src, dst, request).ok()?;
        let ranks = dst.ranks().map(|rank| {
            let routes = plan.routes().iter().filter(|route| route.dst_rank == rank);
            let bytes: u64 = routes.map(|route| plan.route_bytes(route)).sum();
            (bytes, Reverse(rank))
        });
        let (bytes, Reverse(rank)) = ranks.max()?;
        (bytes > 0).then_some(Self { src: src.document(), dst: dst.document(), request: *request, rank })
    }

    /// Tries all orders with the current block sizes, also with the other side's layout of convolutions. Then tries all
    /// block sizes with the current orders, with those of the fewest chunks, and with each order on both sides.
    pub(super) fn all(&self) -> Vec<Suggestion> {
        let orders = |conv_layout| {
            let orders = ORDERS.map(|(order, _)| Some(order));
            let orders = std::iter::once(None).chain(orders);
            let orders = orders.map(|order| Change { order, block_size: None, conv_layout });
            orders.collect::<Vec<_>>()
        };
        let mut found = self.pairs(&orders(None), &orders(None));
        if let (Some(from), Some(to)) = (conv_layout(self.src), conv_layout(self.dst))
            && from != to
        {
            found.extend(self.pairs(&orders(Some(to)), &orders(None)));
            found.extend(self.pairs(&orders(None), &orders(Some(from))));
        }
        let fewest = found.iter().min_by_key(|s| (s.cost.chunks, s.changes()));
        let best = fewest.map(|s| (s.from.clone(), s.to.clone()));
        let best = best.unwrap_or_default();
        let alike = ORDERS.map(|(order, _)| {
            let order = Some(order);
            let (from, to) = best.clone();
            (Change { order, ..from }, Change { order, ..to })
        });
        for (from, to) in [<(Change, Change)>::default(), best].into_iter().chain(alike) {
            let sizes = |change: &Change| {
                let sizes = std::iter::once(None).chain(BLOCK_SIZES.map(Some));
                let sizes = sizes.map(|block_size| Change { block_size, ..change.clone() });
                sizes.collect::<Vec<_>>()
            };
            found.extend(self.pairs(&sizes(&from), &sizes(&to)));
        }
        found
    }

    fn pairs(&self, from: &[Change], to: &[Change]) -> Vec<Suggestion> {
        let new = |document, changes: &[Change]| {
            let mut changes: Vec<Change> = changes.iter().map(|c| c.new_for(document)).collect();
            changes.sort();
            changes.dedup();
            changes
        };
        let (from, to) = (new(self.src, from), new(self.dst, to));
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        let found = pairs.filter_map(|(from, to)| {
            Some(Suggestion { from: from.clone(), to: to.clone(), cost: self.cost(from, to)? })
        });
        found.collect()
    }

    /// Returns the cost of a pair of changes, or `None` if a side cannot have them.
    pub(super) fn cost(&self, from: &Change, to: &Change) -> Option<Cost> {
        let (src, dst) = (from.applied(self.src), to.applied(self.dst));
        let Request { start, tokens, .. } = self.request;
        // Chunks repeat with the period at which all blocks start together. So periods before the range do not matter,
        // and those in the middle are alike. The counted part contains both ends and what windows cut off.
        let (period, reach) = rhythm([&src, &dst])?;
        let start = start % period;
        let repeated = tokens.saturating_sub(reach).saturating_sub(period) / period;
        let least = tokens - repeated * period;
        let end = start.checked_add(least)?.checked_add(period)?;
        let (src, dst) = (blocks::roomy(src, end)?, blocks::roomy(dst, end)?);
        let lengths = |tokens| {
            let request = Request { start, tokens, ..self.request };
            self.lengths(&src, &dst, &request)
        };
        let mut all = lengths(least)?;
        if repeated > 0 {
            for (length, chunks) in lengths(least + period)? {
                let once = all.entry(length).or_default();
                *once += repeated * chunks.saturating_sub(*once);
            }
        }
        Cost::of(&all)
    }

    /// Returns the number of chunks of each length that the rank receives.
    fn lengths(&self, src: &Deployment, dst: &Deployment, request: &Request) -> Option<Lengths> {
        let plan = Plan::compile_for(src, dst, request, Side::Destination, &[self.rank]).ok()?;
        let tables = blocks::scattered(&plan)?;
        let bound = plan.bind(&tables.0, &tables.1).ok()?;
        Some(bound.histogram().into_iter().collect())
    }
}

type Lengths = BTreeMap<u64, u64>;

/// Returns the number of tokens after which the blocks of all groups start together again, and the reach of the longest
/// window.
fn rhythm(sides: [&Document; 2]) -> Option<(u64, u64)> {
    /// A token far beyond any window.
    const FAR: u64 = 1 << 40;
    let (mut period, mut reach) = (1u64, 0);
    let groups = sides.iter().flat_map(|side| side.groups.iter().map(|group| (side.dcp, group)));
    for (dcp, group) in groups {
        period = least_common_multiple(period, group.entry_tokens(dcp))?;
        for spec in &group.specs {
            if let Spec::Attention(Attention { chunk_size: Some(size), .. }) = spec {
                period = least_common_multiple(period, *size)?;
            }
            // Caches without a window need all tokens, which is no reach.
            let needed = FAR - spec.first_token_needed(0, FAR);
            reach = reach.max(if needed < FAR { needed } else { 0 });
        }
    }
    Some((period, reach))
}
