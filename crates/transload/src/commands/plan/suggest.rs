//! `plan --suggest`: finds orders, block sizes and layouts of convolutions that would move the same bytes in fewer,
//! longer chunks.

mod change;
mod search;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use serde::Serialize;
use transload::layout::Deployment;
use transload::transfer::Request;

use self::change::{Change, ORDERS};
use self::search::{Cost, Search, Suggestion};
use crate::show::table::Table;
use crate::show::{deployment, number};

/// The most suggestions for each number of changes.
const OF_EACH: usize = 3;

/// The suggested changes, the most effective first, and the current cost.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands) struct Suggestions {
    today: Cost,
    advice: String,
    best: Vec<Suggestion>,
    /// The engines that support the suggested orders.
    engines: BTreeMap<&'static str, &'static str>,
}

impl Suggestions {
    /// Tries possible changes of both sides. Returns `None` if nothing moves.
    pub(in crate::commands::plan) fn of(src: &Deployment, dst: &Deployment, request: &Request) -> Option<Self> {
        let search = Search::new(src, dst, request)?;
        let today = search.cost(&Change::default(), &Change::default())?;
        let mut best: Vec<Suggestion> = Vec::new();
        let mut found = search.all();
        found.sort_by(|a, b| {
            let key = |s: &Suggestion| {
                let known = (s.from.familiarity(), s.to.familiarity());
                (s.changes(), s.cost.chunks, Reverse(s.cost.chunk_bytes), known)
            };
            let changes = |s: &Suggestion| (s.from.clone(), s.to.clone());
            key(a).cmp(&key(b)).then_with(|| changes(a).cmp(&changes(b)))
        });
        // Among ways with the same cost and as many changes of the same sides, only the most familiar one is kept. Ways
        // that change only one side are kept as well, since a user may control just one.
        let mut seen = HashSet::new();
        let sides = |s: &Suggestion| (s.from.count() > 0, s.to.count() > 0);
        found.retain(|s| seen.insert((s.changes(), sides(s), s.cost)));
        // More changes are suggested only if they gain more.
        for level in found.chunk_by(|a, b| a.changes() == b.changes()) {
            let fewest = best.iter().map(|s| s.cost.chunks).min();
            let fewest = fewest.unwrap_or(today.chunks);
            let better = level.iter().filter(|s| s.cost.chunks < fewest);
            best.extend(better.take(OF_EACH).cloned());
        }
        // At this point the ways with the fewest changes come first.
        let advice = advice(today, &best, (src, dst));
        best.sort_by_key(|s| (s.cost.chunks, s.changes()));
        let named = best.iter().flat_map(|s| [s.from.order, s.to.order]);
        let named: Vec<&str> = named.flatten().collect();
        let engines = ORDERS.into_iter();
        let engines = engines.filter(|(order, _)| named.contains(order));
        Some(Self { today, advice, best, engines: engines.collect() })
    }

    pub(in crate::commands::plan) fn table(&self) -> String {
        let mut table = Table::new("source|destination|>chunks|>main chunk length|>times fewer");
        let today = [("unchanged".to_owned(), "unchanged".to_owned(), self.today)];
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
        let mut text = format!(
            " {}\n\n{}\n counted for the busiest destination rank, blocks scattered\n",
            self.advice.replacen(": ", ":\n ", 1),
            table.finish()
        );
        for (order, engines) in &self.engines {
            let _ = writeln!(text, " {order}: {engines}");
        }
        text
    }
}

/// Returns the advice: the best way with the fewest changes, and its gain.
fn advice(today: Cost, best: &[Suggestion], sides: (&Deployment, &Deployment)) -> String {
    let now = today.text();
    let Some(first) = best.first() else {
        return format!("Leave it unchanged: no other order, block size or layout needs fewer than {now}.");
    };
    let name = |role: &str, side: &Deployment| match side.name() {
        "" => format!("the {role}"),
        _ => deployment::label(role, side),
    };
    let described = |role, side, change: &Change| {
        let parts = [
            change.order.map(|order| format!("the order {order}")),
            change.block_size.map(|size| format!("blocks of {size} tokens")),
            change.conv_layout.map(|layout| format!("convolutions laid out as {layout}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("give {} {}", name(role, side), parts.join(" and ")))
    };
    let parts = [described("source", sides.0, &first.from), described("destination", sides.1, &first.to)];
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
