//! `plan --suggest`: which orders, block sizes and layouts of convolutions would move the same in fewer,
//! longer chunks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use transload::layout::document::{Document, GroupDocument};
use transload::layout::spec::{Attention, ConvLayout};
use transload::layout::{Deployment, Order, Rank, Side, Spec};
use transload::transfer::plan::{Plan, Request};

use super::blocks;
use crate::show::number;
use crate::show::table::{Lean, Table};

/// The orders that engines have, the most familiar first: vLLM's six, and SGLang's pools of keys and of
/// values, by layer or not.
const ORDERS: [&str; 8] = [
    "LBSHC", "LBHSC", "BLSHC", "BLHSC", "BHLSC", "LHBSC", "LKBSHD", "KLBSHD",
];

/// The block sizes that engines have.
const BLOCK_SIZES: [u64; 4] = [16, 32, 64, 128];

/// How many suggestions are told of one change, of two, and so on.
const OF_EACH: usize = 3;

/// A way to serve on both sides, and what comes of it for the busiest destination rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Suggestion {
    /// What each side has to change.
    from: Change,
    to: Change,
    #[serde(flatten)]
    cost: Cost,
}

/// What one side does otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u64>,
    /// As the other side has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    conv_layout: Option<&'static str>,
}

/// What moving costs the busiest destination rank, with blocks scattered as in an engine that has run for
/// a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Cost {
    chunks: u64,
    bytes: u64,
    /// Of the length that most of the bytes travel in.
    chunk_bytes: u64,
}

impl Cost {
    /// `None` where nothing moves.
    fn of(lengths: &Lengths) -> Option<Self> {
        let bytes = |(length, chunks): (&u64, &u64)| length * chunks;
        let (chunk_bytes, _) = lengths.iter().max_by_key(|entry| bytes(*entry))?;
        Some(Self {
            chunks: lengths.values().sum(),
            bytes: lengths.iter().map(bytes).sum(),
            chunk_bytes: *chunk_bytes,
        })
    }

    /// `10,240 chunks of 8 KiB`; without their length where it is not one for all.
    fn text(&self) -> String {
        let chunks = number::count(self.chunks, "chunk");
        match self.chunks.checked_mul(self.chunk_bytes) == Some(self.bytes) {
            true => format!("{chunks} of {}", number::bytes(self.chunk_bytes)),
            false => chunks,
        }
    }
}

/// What could be changed, from one change to many and the best of each first; and how it is today.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands) struct Suggestions {
    today: Cost,
    /// In one sentence.
    advice: String,
    best: Vec<Suggestion>,
}

impl Suggestions {
    /// Tries what both sides could have; `None` where nothing moves.
    pub(super) fn of(src: &Deployment, dst: &Deployment, request: &Request) -> Option<Self> {
        let search = Search::new(src, dst, request)?;
        let today = search.cost(&Change::default(), &Change::default())?;
        let mut best: Vec<Suggestion> = Vec::new();
        let mut found = search.all();
        found.sort_by(|a, b| {
            let key = |s: &Suggestion| {
                let known = (s.from.familiarity(), s.to.familiarity());
                (
                    s.changes(),
                    s.cost.chunks,
                    Reverse(s.cost.chunk_bytes),
                    known,
                )
            };
            let changes = |s: &Suggestion| (s.from.clone(), s.to.clone());
            key(a)
                .cmp(&key(b))
                .then_with(|| changes(a).cmp(&changes(b)))
        });
        found.dedup();
        // More changes have to gain more than fewer did.
        for level in found.chunk_by(|a, b| a.changes() == b.changes()) {
            let fewest = best.iter().map(|s| s.cost.chunks).min();
            let fewest = fewest.unwrap_or(today.chunks);
            let better = level.iter().filter(|s| s.cost.chunks < fewest);
            best.extend(better.take(OF_EACH).cloned());
        }
        let advice = advice(today, &best, (src, dst));
        Some(Self {
            today,
            advice,
            best,
        })
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new(&[
            ("source", Lean::Left),
            ("destination", Lean::Left),
            ("chunks", Lean::Right),
            ("most bytes in", Lean::Right),
            ("times fewer", Lean::Right),
        ]);
        let today = [("as it is".to_owned(), "as it is".to_owned(), self.today)];
        let best = self.best.iter();
        let best = best.map(|s| (s.from.text(), s.to.text(), s.cost));
        for (from, to, cost) in today.into_iter().chain(best) {
            table.row([
                from,
                to,
                number::grouped(cost.chunks),
                number::bytes(cost.chunk_bytes),
                number::figures(self.today.chunks as f64 / cost.chunks as f64),
            ]);
        }
        format!(
            " {}\n\n{}\n counted for the busiest destination rank, its blocks scattered\n",
            self.advice.replacen(": ", ":\n ", 1),
            table.finish()
        )
    }
}

/// Everything that is tried.
struct Search<'a> {
    src: &'a Document,
    dst: &'a Document,
    request: Request,
    rank: Rank,
}

impl<'a> Search<'a> {
    fn new(src: &'a Deployment, dst: &'a Deployment, request: &Request) -> Option<Self> {
        let plan = Plan::compile(src, dst, request).ok()?;
        let ranks = dst.ranks().map(|rank| {
            let routes = plan.routes().iter().filter(|route| route.dst_rank == rank);
            let bytes: u64 = routes.map(|route| plan.route_bytes(route)).sum();
            (bytes, Reverse(rank))
        });
        let (bytes, Reverse(rank)) = ranks.max()?;
        (bytes > 0).then_some(Self {
            src: src.document(),
            dst: dst.document(),
            request: *request,
            rank,
        })
    }

    /// All orders with the block sizes of today, and with convolutions laid out as on the other side; and all
    /// block sizes with the orders of today, with those of the fewest chunks, and with each order on both sides.
    fn all(&self) -> Vec<Suggestion> {
        let orders = |conv_layout| {
            let orders = std::iter::once(None).chain(ORDERS.map(Some));
            let orders = orders.map(|order| Change {
                order,
                block_size: None,
                conv_layout,
            });
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
        let alike = ORDERS.map(|order| {
            let order = Some(order);
            let (from, to) = best.clone();
            (Change { order, ..from }, Change { order, ..to })
        });
        for (from, to) in [<(Change, Change)>::default(), best]
            .into_iter()
            .chain(alike)
        {
            let sizes = |change: &Change| {
                let sizes = std::iter::once(None).chain(BLOCK_SIZES.map(Some));
                let sizes = sizes.map(|block_size| Change {
                    block_size,
                    ..change.clone()
                });
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
        let pairs = from
            .iter()
            .flat_map(|from| to.iter().map(move |to| (from, to)));
        let found = pairs.filter_map(|(from, to)| {
            Some(Suggestion {
                from: from.clone(),
                to: to.clone(),
                cost: self.cost(from, to)?,
            })
        });
        found.collect()
    }

    /// What it costs so; `None` where a side cannot have that.
    fn cost(&self, from: &Change, to: &Change) -> Option<Cost> {
        let (src, dst) = (from.applied(self.src), to.applied(self.dst));
        let Request { start, tokens, .. } = self.request;
        // Where all blocks begin anew together, chunks repeat: it does not matter how many such stretches
        // lie before, and those in the middle are alike. What is left at both ends, and behind windows, is
        // in the part that is counted.
        let (period, reach) = rhythm([&src, &dst])?;
        let start = start % period;
        let repeated = tokens.saturating_sub(reach).saturating_sub(period) / period;
        let least = tokens - repeated * period;
        let end = start.checked_add(least)?.checked_add(period)?;
        let (src, dst) = (roomy(src, end)?, roomy(dst, end)?);
        let lengths = |tokens| {
            let request = Request {
                start,
                tokens,
                ..self.request
            };
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

    /// How many chunks of each length the rank receives.
    fn lengths(&self, src: &Deployment, dst: &Deployment, request: &Request) -> Option<Lengths> {
        let plan = Plan::compile_for(src, dst, request, Side::Destination, self.rank).ok()?;
        let tables = blocks::scattered(&plan);
        let summary = plan.bind(&tables.0, &tables.1).ok()?.summary();
        Some(summary.histogram.iter().collect())
    }
}

/// How many chunks there are of each length in bytes.
type Lengths = BTreeMap<u64, u64>;

/// After how many tokens the blocks of all groups begin anew together, and how far back windows reach.
fn rhythm(sides: [&Document; 2]) -> Option<(u64, u64)> {
    /// A token far beyond any window.
    const FAR: u64 = 1 << 40;
    let (mut period, mut reach) = (1u64, 0);
    for group in sides.iter().flat_map(|side| &side.groups) {
        period = least_common_multiple(period, group.block_size)?;
        for spec in &group.specs {
            if let Spec::Attention(Attention {
                chunk_size: Some(size),
                ..
            }) = spec
            {
                period = least_common_multiple(period, *size)?;
            }
            // All tokens are needed by what has no window.
            let needed = FAR - spec.first_token_needed(0, FAR);
            reach = reach.max(if needed < FAR { needed } else { 0 });
        }
    }
    Some((period, reach))
}

/// A side with room for so many tokens in scattered blocks, if it can be.
fn roomy(mut document: Document, tokens: u64) -> Option<Deployment> {
    for group in &mut document.groups {
        let blocks = match is_paged(group) {
            true => tokens.div_ceil(group.block_size.max(1)),
            false => 1,
        };
        group.num_blocks = 2 * blocks;
    }
    Deployment::from_document(document).ok()
}

/// Whether its blocks hold tokens, and not one state of a whole sequence.
fn is_paged(group: &GroupDocument) -> bool {
    group
        .specs
        .iter()
        .any(|spec| spec.tokens_per_state().is_some())
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a.checked_div(x)?.checked_mul(b)
}

impl Change {
    /// How far down the list of orders it is.
    fn familiarity(&self) -> Option<usize> {
        ORDERS.iter().position(|known| Some(*known) == self.order)
    }

    /// How much there is to change.
    fn count(&self) -> usize {
        usize::from(self.order.is_some())
            + usize::from(self.block_size.is_some())
            + usize::from(self.conv_layout.is_some())
    }

    /// What of it a side does not do already.
    fn new_for(&self, document: &Document) -> Self {
        let differs = |change: Self| {
            let mut groups = document.groups.iter();
            groups.any(|group| {
                let mut changed = group.clone();
                change.apply(&mut changed);
                let order =
                    |g: &GroupDocument| Order::parse(g.order.as_deref().unwrap_or("LBSHC")).ok();
                (changed.block_size, order(&changed)) != (group.block_size, order(group))
            })
        };
        let (order, block_size) = (self.order, self.block_size);
        Self {
            order: order.filter(|_| {
                differs(Self {
                    order,
                    ..Self::default()
                })
            }),
            block_size: block_size.filter(|_| {
                differs(Self {
                    block_size,
                    ..Self::default()
                })
            }),
            conv_layout: self
                .conv_layout
                .filter(|wanted| conv_layout(document) != Some(*wanted)),
        }
    }

    /// A side that does so.
    fn applied(&self, document: &Document) -> Document {
        let mut changed = document.clone();
        changed
            .groups
            .iter_mut()
            .for_each(|group| self.apply(group));
        changed
    }

    fn apply(&self, group: &mut GroupDocument) {
        if let Some(size) = self.block_size.filter(|_| is_paged(group)) {
            group.block_size = size;
        }
        if let Some(order) = self.order.filter(|_| group.takes_orders()) {
            group.order = Some(order.to_owned());
        }
        if let Some(name) = self.conv_layout {
            let layouts = group.specs.iter_mut().filter_map(Spec::conv_layout_mut);
            for layout in layouts {
                *layout = match name {
                    "DS" => ConvLayout::Ds,
                    _ => ConvLayout::Sd,
                };
            }
        }
        if *self != Self::default() {
            // They were made for how it lay.
            (group.block_stride, group.layer_stride) = (None, None);
        }
    }

    /// `order LBHSC, blocks of 64`
    fn text(&self) -> String {
        let parts = [
            self.order.map(|order| format!("order {order}")),
            self.block_size.map(|size| format!("blocks of {size}")),
            self.conv_layout.map(|layout| format!("conv {layout}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "as it is".to_owned(),
            false => parts.join(", "),
        }
    }
}

impl Suggestion {
    fn changes(&self) -> usize {
        self.from.count() + self.to.count()
    }
}

/// How a side lays out its convolutions, if it has any.
fn conv_layout(document: &Document) -> Option<&'static str> {
    let mut specs = document.groups.iter().flat_map(|group| &group.specs);
    specs
        .find_map(Spec::conv_layout)
        .map(|layout| match layout {
            ConvLayout::Ds => "DS",
            ConvLayout::Sd => "SD",
        })
}

/// What to change, and what that gains: of the least that can be changed, the best.
fn advice(today: Cost, best: &[Suggestion], sides: (&Deployment, &Deployment)) -> String {
    let now = today.text();
    let Some(first) = best.first() else {
        return format!(
            "Leave it as it is: no other order, block size or layout makes fewer than {now}."
        );
    };
    let name = |role: &str, side: &Deployment| match side.name() {
        "" => format!("the {role}"),
        name => name.to_owned(),
    };
    let told = |role, side, change: &Change| {
        let parts = [
            change.order.map(|order| format!("the order {order}")),
            change
                .block_size
                .map(|size| format!("blocks of {size} tokens")),
            change
                .conv_layout
                .map(|layout| format!("convolutions laid out as {layout}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("give {} {}", name(role, side), parts.join(" and ")))
    };
    let parts = [
        told("source", sides.0, &first.from),
        told("destination", sides.1, &first.to),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let what = parts.join(", and ");
    let (head, tail) = what.split_at(what.len().min(1));
    format!(
        "{}{tail}: {} for a destination rank instead of {now}, {} times fewer.",
        head.to_uppercase(),
        first.cost.text(),
        number::figures(today.chunks as f64 / first.cost.chunks as f64),
    )
}
