//! The beginning of a block as a strip of cells, with a row for each axis.

use std::fmt::Write;

use transload::layout::{Axis, ComponentView};

use super::super::cells::{Cell, Grain, Meaning};
use super::super::paint::Paint;
use super::INDENT;
use crate::show::number::exact_bytes;

/// Stands for what is left out.
const MORE: &str = "…";

/// Block 0 of the first layer; or of all layers, where they lie inside of the block.
pub(super) fn write(
    text: &mut String,
    views: &[ComponentView],
    grains: &[Grain],
    paint: &Paint,
    first_layer: u32,
    width: usize,
) {
    let layers_inside = views.iter().all(|view| {
        let (layer, block) = (view.view.dim(Axis::Layer), view.view.dim(Axis::Block));
        layer.extent > 1 && block.extent > 1 && layer.stride < block.stride
    });
    // The first two positions of each axis and the last, if that much fits, else fewer.
    let strips = [(2, true), (1, true), (1, false)].map(|few| {
        let cells = sample(views, grains, first_layer, layers_inside, few);
        Strip::new(&cells, paint)
    });
    let [most, fewer, least] = &strips;
    let strip = match [most, fewer]
        .into_iter()
        .find(|strip| strip.width() <= width)
    {
        Some(strip) => strip,
        // Of a page of many components each is shown; of others, as much as there is room for.
        None if views.len() > 2 => least,
        None => fewer,
    };
    if strip.gaps.len() < 2 {
        return;
    }
    let page: u64 = views
        .iter()
        .map(|view| {
            let [layers, _, states, units, content] = view.view.shape();
            states * units * content * if layers_inside { layers } else { 1 }
        })
        .sum();
    let of_layer = match layers_inside {
        true => String::new(),
        false => format!(" of layer {first_layer}"),
    };
    let _ = writeln!(text, "{INDENT}block 0{of_layer}, {}:", exact_bytes(page));
    strip.write(text, width);
}

/// Cells at the first and the last positions of each axis, in the order of their addresses.
fn sample(
    views: &[ComponentView],
    grains: &[Grain],
    layer: u32,
    layers_inside: bool,
    (first, and_last): (u64, bool),
) -> Vec<Cell> {
    let few = |extent: u64| -> Vec<u64> {
        let mut positions: Vec<u64> = (0..first).collect();
        positions.extend(and_last.then(|| extent.saturating_sub(1)));
        positions.retain(|position| *position < extent);
        positions.sort_unstable();
        positions.dedup();
        positions
    };
    let mut cells = Vec::new();
    for (view, grain) in views.iter().zip(grains) {
        let dim = |axis| view.view.dim(axis);
        let mut at = vec![(view.view.offset, Vec::<u64>::new())];
        let layers = if layers_inside {
            dim(Axis::Layer).extent
        } else {
            1
        };
        let mut axes = vec![
            (dim(Axis::Layer).stride, layers),
            (dim(Axis::State).stride, dim(Axis::State).extent),
            (dim(Axis::Unit).stride, dim(Axis::Unit).extent),
        ];
        axes.extend(
            grain
                .axes
                .iter()
                .map(|(axis, extent)| (dim(*axis).stride, *extent)),
        );
        for (stride, extent) in axes {
            let mut next = Vec::new();
            for (address, before) in &at {
                for position in few(extent) {
                    let mut positions = before.clone();
                    positions.push(position);
                    next.push((address + position * stride, positions));
                }
            }
            at = next;
        }
        for (address, positions) in at {
            let [slot, state, unit, content @ ..] = &positions[..] else {
                continue;
            };
            cells.push(Cell {
                address,
                bytes: grain.bytes,
                block: 0,
                is: Meaning {
                    layer: layer + *slot as u32,
                    state: *state,
                    part: (view.spec, view.component),
                    unit: view.units.start + unit,
                    content: content.to_vec(),
                },
            });
        }
    }
    cells.sort_by_key(|cell| cell.address);
    cells
}

/// Columns of text: cells, and gaps where something is left out.
struct Strip {
    /// Whether something is left out before the cell.
    gaps: Vec<bool>,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    labels: Vec<Option<String>>,
    changes: usize,
}

impl Strip {
    fn new(cells: &[Cell], paint: &Paint) -> Self {
        let mut gaps = vec![false];
        gaps.extend(
            cells
                .windows(2)
                .map(|two| two[0].address + two[0].bytes != two[1].address),
        );
        let unit = cells.iter().find_map(|cell| paint.unit(&cell.is));
        let unit = unit.map_or_else(String::new, |(name, _)| name);
        let mut rows = Vec::new();
        let mut row = |name: &str, label: &dyn Fn(&Cell) -> Option<String>| {
            rows.extend(Row::new(name, cells.iter().map(label).collect()));
        };
        row("layer", &|cell| Some(cell.is.layer.to_string()));
        row(&unit, &|cell| {
            paint.unit(&cell.is).map(|(name, is_first)| match is_first {
                true => cell.is.unit.to_string(),
                false => format!(
                    "{}{}",
                    name.chars().take(1).collect::<String>(),
                    cell.is.unit
                ),
            })
        });
        row(paint.state_word(), &|cell| Some(cell.is.state.to_string()));
        row("part", &|cell| Some(paint.component(&cell.is).to_owned()));
        for word in paint.content_words() {
            row(word, &|cell| {
                paint.content(&cell.is, word).map(|at| at.to_string())
            });
        }
        rows.sort_by_key(|row| row.changes);
        Self { gaps, rows }
    }

    /// Columns before the cells, and those of the rows' names.
    fn start(&self) -> (usize, usize) {
        let names = self.rows.iter().map(|row| row.name.chars().count());
        let names = names.max().unwrap_or(0);
        (INDENT.len() + names + 1, names)
    }

    fn cell(&self) -> usize {
        let rows = self.rows.iter();
        rows.map(|row| row.narrowest(&self.gaps)).max().unwrap_or(1)
    }

    /// Columns of all of it.
    fn width(&self) -> usize {
        let gaps = self.gaps.iter().filter(|gap| **gap).count();
        self.start().0 + self.gaps.len() * (self.cell() + 1) + 2 * gaps + 1
    }

    fn write(&self, text: &mut String, width: usize) {
        let (start, names) = self.start();
        let cell = self.cell();
        // As many cells as fit, with a bar before each and after the last.
        let mut columns = 0;
        let mut used = start + 1;
        for gap in &self.gaps {
            used += cell + 1 + if *gap { 2 } else { 0 };
            if used + usize::from(columns + 1 < self.gaps.len()) > width && columns > 0 {
                break;
            }
            columns += 1;
        }
        let cut = columns < self.gaps.len();
        // Where a row begins anew, so do all that are inside of it.
        let mut anew = vec![false; columns];
        for (index, row) in self.rows.iter().enumerate() {
            let innermost = index + 1 == self.rows.len();
            let mut line = format!("{INDENT}{:names$} ", row.name);
            let mut room = 0usize;
            let mut before: Option<&Option<String>> = None;
            for ((label, gap), anew) in row.labels.iter().zip(&self.gaps).zip(&mut anew) {
                *anew |= before != Some(label);
                before = Some(label);
                let (gap, begins) = (*gap, *anew || (*gap && innermost));
                if gap && !begins {
                    room += 2;
                } else if gap {
                    line.push_str(&" ".repeat(room));
                    room = 0;
                    line.push_str(if innermost { "│…" } else { "│ " });
                }
                if begins {
                    line.push_str(&" ".repeat(room));
                    let label = label.as_deref().unwrap_or_default();
                    line.push('│');
                    line.push_str(label);
                    room = cell.saturating_sub(label.chars().count());
                } else {
                    room += cell + 1;
                }
            }
            line.push_str(&" ".repeat(room));
            line.push('│');
            if cut && innermost {
                line.push_str(MORE);
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
}

impl Row {
    fn new(name: &str, labels: Vec<Option<String>>) -> Option<Self> {
        let mut distinct: Vec<&String> = labels.iter().flatten().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let several = distinct.len() > 1;
        let changes = labels.windows(2).filter(|two| two[0] != two[1]).count();
        several.then(|| Self {
            name: name.to_owned(),
            labels,
            changes,
        })
    }

    /// How wide cells have to be for the row's labels.
    fn narrowest(&self, gaps: &[bool]) -> usize {
        let mut widest = 1;
        let mut column = 0;
        while column < self.labels.len() {
            let mut end = column + 1;
            while end < self.labels.len() && !gaps[end] && self.labels[end] == self.labels[column] {
                end += 1;
            }
            let label = self.labels[column]
                .as_ref()
                .map_or(0, |label| label.chars().count());
            let cells = end - column;
            // Between the cells of a run there is room for the bars that it does not have.
            widest = widest.max((label + 1).saturating_sub(cells).div_ceil(cells));
            column = end;
        }
        widest
    }
}
