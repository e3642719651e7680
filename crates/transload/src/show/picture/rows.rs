//! The axes of a side's memory, written along it: what stays the same for how long.

use std::ops::Range;

use super::cells::Cell;
use super::paint::Paint;
use super::strip::{Strips, follows};
use super::svg::{Anchor, MARGIN, Px, Svg, text_width};

/// Px from row to row.
pub(super) const HEIGHT: f64 = 17.0;

/// Of labels, in px.
const SIZE: f64 = 10.5;

/// One axis, as runs of cells with the same position.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    runs: Vec<Run>,
    /// How often the position changes along the memory.
    changes: usize,
}

#[derive(Debug)]
struct Run {
    x: Range<f64>,
    label: String,
    cells: usize,
}

impl Row {
    /// The axes of a side that has more than one position of, the one that changes least first.
    pub(super) fn of(strips: &Strips, paint: &Paint, others: bool) -> Vec<Self> {
        let first = strips.ranks.iter().flat_map(|strip| &strip.cells).next();
        let unit = first.and_then(|cell| paint.unit(&cell.is));
        let unit = unit.map_or("head".to_owned(), |(name, _)| name);
        let mut rows: Vec<Self> = [
            Self::along(strips, "layer", |cell| Some(cell.is.layer.to_string())),
            Self::along(strips, "block", |cell| Some(cell.block.to_string())),
            Self::along(strips, &unit, |cell| {
                paint.unit(&cell.is).map(|(name, is_first)| match is_first {
                    true => cell.is.unit.to_string(),
                    false => format!("{name} {}", cell.is.unit),
                })
            }),
            Self::along(strips, paint.state_word(), |cell| {
                Some(cell.is.state.to_string())
            }),
            Self::along(strips, "part", |cell| {
                Some(paint.component(&cell.is).to_owned())
            }),
        ]
        .into_iter()
        .flatten()
        .collect();
        for word in paint.content_words() {
            rows.extend(Self::along(strips, word, |cell| {
                paint.content(&cell.is, word).map(|at| at.to_string())
            }));
        }
        // Ties stay in the order of the axes.
        rows.sort_by_key(|row| row.changes);
        if strips.ranks.len() > 1 || others {
            let runs = strips.ranks.iter().filter_map(|strip| {
                let (first, last) = (strip.xs.first()?, strip.xs.last()?);
                Some(Run {
                    x: first.start..last.end,
                    label: strip.rank.to_string(),
                    cells: strip.cells.len(),
                })
            });
            rows.insert(
                0,
                Self {
                    name: "rank".to_owned(),
                    runs: runs.collect(),
                    changes: 0,
                },
            );
        }
        rows
    }

    fn along(strips: &Strips, name: &str, label: impl Fn(&Cell) -> Option<String>) -> Option<Self> {
        let mut runs: Vec<Run> = Vec::new();
        let mut labels: Vec<String> = Vec::new();
        let mut changes = 0;
        for strip in &strips.ranks {
            let mut before: Option<(&Cell, String)> = None;
            for (cell, x) in strip.cells.iter().zip(&strip.xs) {
                let Some(label) = label(cell) else {
                    before = None;
                    continue;
                };
                let same = before.as_ref();
                let same = same.is_some_and(|(last, of)| follows(last, cell) && *of == label);
                match runs.last_mut() {
                    Some(run) if same => {
                        run.x.end = x.end;
                        run.cells += 1;
                    }
                    _ => runs.push(Run {
                        x: x.clone(),
                        label: label.clone(),
                        cells: 1,
                    }),
                }
                // Gaps end a run, and change nothing.
                changes += usize::from(before.as_ref().is_none_or(|(_, of)| *of != label));
                if !labels.contains(&label) {
                    labels.push(label.clone());
                }
                before = Some((cell, label));
            }
        }
        (labels.len() > 1).then(|| Self {
            name: name.to_owned(),
            runs,
            changes,
        })
    }

    /// Draws it with its line at `y`; the labels stand on the line.
    pub(super) fn draw(&self, svg: &mut Svg, y: f64, below: bool) {
        let baseline = if below { y + 10.0 } else { y - 3.0 };
        svg.text((MARGIN, baseline), "dim", Anchor::Start, &self.name);
        let fits: Vec<bool> = self.runs.iter().map(|run| self.fits(run)).collect();
        let mut data = String::new();
        for (run, labelled) in self.runs.iter().zip(&fits) {
            // A label under a cell needs no line to say how far it goes.
            if run.cells > 1 || !labelled {
                let (start, end) = (Px(run.x.start + 0.8), Px(run.x.end - 0.8));
                data.push_str(&format!("M{start} {}H{end}", Px(y)));
            }
        }
        if !data.is_empty() {
            svg.path(&data, r#"class="rule" stroke-width="1.2""#);
        }
        for run in self
            .runs
            .iter()
            .zip(fits)
            .filter_map(|(run, fits)| fits.then_some(run))
        {
            let middle = (run.x.start + run.x.end) / 2.0;
            svg.text((middle, baseline), "ink small", Anchor::Middle, &run.label);
        }
    }

    /// Numbers fit where the widest of them does, so that none is missing among others.
    fn fits(&self, run: &Run) -> bool {
        let is_number = |label: &str| label.bytes().all(|b| b.is_ascii_digit());
        let width = |label: &str| text_width(label, SIZE) + if label.len() > 2 { 3.0 } else { 1.0 };
        let widest = match is_number(&run.label) {
            false => width(&run.label),
            true => {
                let numbers = self.runs.iter().filter(|run| is_number(&run.label));
                numbers.map(|run| width(&run.label)).fold(0.0, f64::max)
            }
        };
        widest <= run.x.end - run.x.start
    }
}
