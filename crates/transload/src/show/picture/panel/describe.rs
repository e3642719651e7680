//! Chunks in words.

use std::collections::BTreeMap;

use super::super::cells::Cell;
use super::Panel;
use crate::show::number::{count, grouped};

impl Panel {
    /// What the chunks that are drawn amount to: `32 chunks, each K and V of 1 token of 1 head`.
    pub(super) fn chunk_words(&self) -> String {
        // By their length in bytes, then as described.
        let mut kinds: BTreeMap<(u64, String), u64> = BTreeMap::new();
        for chunk in &self.chunks {
            let cells = &self.src.ranks[chunk.src.0].cells[chunk.src.1.clone()];
            let bytes = cells.iter().map(|cell| cell.bytes).sum();
            *kinds.entry((bytes, self.describe(cells))).or_default() += 1;
        }
        let kinds: Vec<(&str, u64)> = kinds
            .iter()
            .map(|((_, kind), n)| (kind.as_str(), *n))
            .collect();
        let chunks = |n: u64| count(n, "chunk");
        match &kinds[..] {
            [] => "nothing travels".to_owned(),
            [(kind, n)] => format!("{}, each {kind}", chunks(*n)),
            [(short, n), (long, m)] => {
                format!(
                    "{}, each {short}, and {}, each {long}",
                    chunks(*n),
                    grouped(*m)
                )
            }
            [(shortest, _), .., (longest, _)] => {
                format!(
                    "{}, from {shortest} to {longest}",
                    chunks(self.chunks.len() as u64)
                )
            }
        }
    }

    fn describe(&self, cells: &[Cell]) -> String {
        let distinct = |of: &dyn Fn(&Cell) -> u64| {
            let mut values: Vec<u64> = cells.iter().map(of).collect();
            values.sort_unstable();
            values.dedup();
            values.len() as u64
        };
        let mut words = Vec::new();
        let layers = distinct(&|cell| cell.is.layer.into());
        if layers > 1 {
            words.push(count(layers, "layer"));
        }
        let states = distinct(&|cell| cell.is.state);
        if self.paint.has_states() {
            words.push(count(states, self.paint.state_word()));
        }
        if let Some((unit, _)) = cells.first().and_then(|cell| self.paint.unit(&cell.is)) {
            words.push(count(distinct(&|cell| cell.is.unit), &unit));
        }
        let mut parts: Vec<&str> = Vec::new();
        for cell in cells {
            let name = self.paint.component(&cell.is);
            if !parts.contains(&name) {
                parts.push(name);
            }
        }
        let (last, before) = parts.split_last().unwrap_or((&"", &[]));
        let parts = match before {
            [] => (*last).to_owned(),
            before => format!("{} and {last}", before.join(", ")),
        };
        // Of elements that lie apart, a token or a head is not worth a word.
        if cells
            .first()
            .is_some_and(|cell| !cell.is.content.is_empty())
        {
            return format!("{} of {parts}", count(cells.len() as u64, "element"));
        }
        words.insert(0, parts);
        words.join(" of ")
    }
}
