//! The beginning of a block, as a strip of cells with a row for each axis.

use std::fmt::Write;

use transload::layout::{Axis, ComponentView};

use crate::show::memory::{Memory, Position};
use crate::show::number::exact_bytes;

pub(super) const INDENT: &str = "   ";

const MORE: &str = "…";

/// A run of bytes for which all rows have the same label.
struct Cell {
    address: u64,
    bytes: u64,
    is: Position,
}

/// Returns the length of a component's longest contiguous runs in bytes, and the content axes that step from one run to
/// the next.
fn grain(view: &ComponentView) -> (u64, Vec<Axis>) {
    let content = view.view.dims.iter();
    let content = content.filter(|dim| matches!(dim.axis, Axis::Content(_) | Axis::Byte));
    let mut apart: Vec<_> = content.collect();
    let mut bytes = 1;
    while let Some(next) = apart.iter().position(|dim| dim.extent == 1 || dim.stride == bytes) {
        bytes *= apart.remove(next).extent;
    }
    (bytes, apart.into_iter().map(|dim| dim.axis).collect())
}

/// Writes block 0 of the first layer, or of all layers if they are inside the block.
pub(super) fn write(text: &mut String, memory: &Memory<'_>, width: usize) {
    let layers_inside = memory.parts.iter().all(|part| {
        let view = &part.view.view;
        let (layer, block) = (view.dim(Axis::Layer), view.dim(Axis::Block));
        layer.extent > 1 && block.extent > 1 && layer.stride < block.stride
    });
    // Shows the first two positions of each axis and the last one if they fit, otherwise fewer.
    let strips = [(2, true), (1, true), (1, false)].map(|few| Strip::new(&sample(memory, layers_inside, few), memory));
    let [most, fewer, least] = &strips;
    let strip = match [most, fewer].into_iter().find(|strip| strip.width() <= width) {
        Some(strip) => strip,
        // A page of many components shows each of them; others show as much as fits.
        None if memory.parts.len() > 2 => least,
        None => fewer,
    };
    if strip.gaps.len() < 2 {
        return;
    }
    let pages = memory.parts.iter().map(|part| {
        let [layers, _, states, units, content] = part.view.view.shape();
        states * units * content * if layers_inside { layers } else { 1 }
    });
    let of_layer = match (layers_inside, memory.at(memory.parts[0].view.view.offset)) {
        (false, Some(first)) => format!(" of layer {}", first.layer),
        _ => String::new(),
    };
    let page = exact_bytes(pages.sum());
    let _ = writeln!(text, "{INDENT}block 0{of_layer}, {page}:");
    strip.write(text, width);
}

/// Returns cells at the first and last positions of each axis, in the order of their addresses.
fn sample(memory: &Memory<'_>, layers_inside: bool, (first, and_last): (u64, bool)) -> Vec<Cell> {
    let few = |extent: u64| {
        let last = (first..extent).next_back().filter(move |_| and_last);
        (0..first.min(extent)).chain(last)
    };
    let mut cells = Vec::new();
    for part in &memory.parts {
        let view = &part.view.view;
        let (bytes, apart) = grain(&part.view);
        let mut addresses = vec![view.offset];
        let axes = [Axis::State, Axis::Unit].into_iter().chain(apart);
        for axis in layers_inside.then_some(Axis::Layer).into_iter().chain(axes) {
            let dim = view.dim(axis);
            let next = addresses.iter();
            let next = next.flat_map(|at| few(dim.extent).map(move |n| at + n * dim.stride));
            addresses = next.collect();
        }
        let of_part = addresses.into_iter().filter_map(|address| {
            let is = memory.at(address)?;
            Some(Cell { address, bytes, is })
        });
        cells.extend(of_part);
    }
    cells.sort_by_key(|cell| cell.address);
    cells
}

/// The columns of a strip: cells, and gaps for cells that are left out.
struct Strip {
    /// Whether cells before each cell are left out.
    gaps: Vec<bool>,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    labels: Vec<Option<String>>,
    changes: usize,
}

impl Strip {
    fn new(cells: &[Cell], memory: &Memory<'_>) -> Self {
        let mut gaps = vec![false];
        gaps.extend(cells.windows(2).map(|two| two[0].address + two[0].bytes != two[1].address));
        let mut rows = Vec::new();
        let mut row = |name: &str, label: &dyn Fn(&Cell) -> Option<String>| {
            rows.extend(Row::new(name, cells.iter().map(label).collect()));
        };
        let part = |cell: &Cell| &memory.parts[cell.is.part];
        row("layer", &|cell| Some(cell.is.layer.to_string()));
        let unit = cells.iter().find_map(|cell| part(cell).unit.as_deref());
        let unit = unit.unwrap_or_default();
        let first = memory.parts[0].unit.as_deref();
        row(unit, &|cell| {
            let (name, at) = (part(cell).unit.as_deref()?, cell.is.unit);
            Some(match Some(name) == first {
                true => at.to_string(),
                false => format!("{}{at}", &name[..1]),
            })
        });
        row(memory.state(), &|cell| Some(cell.is.state.to_string()));
        row("part", &|cell| Some(part(cell).name.to_owned()));
        let apart = memory.parts.iter().flat_map(|part| {
            let (_, apart) = grain(&part.view);
            let content = part.content.iter().copied();
            content.filter(move |(axis, _)| apart.contains(axis))
        });
        let mut apart: Vec<(Axis, &str)> = apart.collect();
        apart.sort_unstable();
        apart.dedup();
        for (_, word) in &apart {
            row(word, &|cell| {
                let (_, steps) = grain(&part(cell).view);
                let mut content = part(cell).content.iter().zip(&cell.is.content);
                let (_, at) = content.find(|((axis, of), _)| of == word && steps.contains(axis))?;
                Some(at.to_string())
            });
        }
        // A row with few changes encloses those with more.
        rows.sort_by_key(|row| row.changes);
        Self { gaps, rows }
    }

    /// Returns the width before the cells, and that of the rows' names.
    fn start(&self) -> (usize, usize) {
        let names = self.rows.iter().map(|row| row.name.chars().count());
        let names = names.max().unwrap_or(0);
        (INDENT.len() + names + 1, names)
    }

    fn cell(&self) -> usize {
        let rows = self.rows.iter();
        rows.map(|row| row.narrowest(&self.gaps)).max().unwrap_or(1)
    }

    fn width(&self) -> usize {
        let gaps = self.gaps.iter().filter(|gap| **gap).count();
        self.start().0 + self.gaps.len() * (self.cell() + 1) + 2 * gaps + 1
    }

    fn write(&self, text: &mut String, width: usize) {
        let (start, names) = self.start();
        let cell = self.cell();
        // Counts the cells that fit, with a bar before each and after the last.
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
        // Where a row starts a new label, all rows inside it do, too.
        let mut restarts = vec![false; columns];
        for (index, row) in self.rows.iter().enumerate() {
            let innermost = index + 1 == self.rows.len();
            let mut line = format!("{INDENT}{:names$} ", row.name);
            let mut room = 0usize;
            let mut before: Option<&Option<String>> = None;
            for ((label, gap), restarts) in row.labels.iter().zip(&self.gaps).zip(&mut restarts) {
                *restarts |= before != Some(label);
                before = Some(label);
                let (gap, begins) = (*gap, *restarts || (*gap && innermost));
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
        several.then(|| Self { name: name.to_owned(), labels, changes })
    }

    /// Returns the width of cells that the row's labels need.
    fn narrowest(&self, gaps: &[bool]) -> usize {
        let mut widest = 1;
        let mut column = 0;
        while column < self.labels.len() {
            let mut end = column + 1;
            while end < self.labels.len() && !gaps[end] && self.labels[end] == self.labels[column] {
                end += 1;
            }
            let label = self.labels[column].as_ref().map_or(0, |label| label.chars().count());
            let cells = end - column;
            // A run has no bars between its cells, so its label may use their columns.
            widest = widest.max((label + 1).saturating_sub(cells).div_ceil(cells));
            column = end;
        }
        widest
    }
}
