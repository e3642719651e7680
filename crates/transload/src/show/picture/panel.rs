//! The panel of one group: the first chunks of a rank's memory, and their places on the other side.

use transload::layout::{Allocation, Group, Rank, Side};
use transload::transfer::BlockTable;
use transload::transfer::plan::BoundRoute;
use transload::transfer::plan::program::Loop;

use super::Scene;
use super::svg::{MARGIN, Svg, WIDTH, text_width};
use crate::show::deployment;
use crate::show::memory::{Memory, Position};
use crate::show::number::{bytes, count, exact_bytes};

/// The most chunks that are drawn; more could not be told apart.
const MOST_CHUNKS: usize = 20;

const LABELS: f64 = 62.0;

/// The greatest width of a cell, and the share of it that is used for bytes that are not drawn and between ranks.
const WIDEST: f64 = 60.0;
const GAP: f64 = 0.4;

/// The heights of a cell, of a row of labels, and of the space between the sides.
const CELL: f64 = 24.0;
const ROW: f64 = 17.0;
const RIBBONS: f64 = 120.0;

const SMALL: f64 = 9.5;

/// The hues of the ranks on the other side.
const HUES: [u32; 8] = [212, 28, 140, 320, 180, 50, 265, 0];

#[derive(Debug)]
pub(super) struct Panel {
    group: usize,
    /// The index of the side with fewer ranks. Its first rank's memory is drawn.
    followed: usize,
    /// The chunks, in the order of their addresses on the followed side.
    pub(super) chunks: Vec<Chunk>,
    /// The memory of the ranks with these chunks, on both sides.
    pub(super) sides: [Vec<Strip>; 2],
}

/// A run of bytes that is contiguous on both sides, with its rank and address on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chunk {
    pub(super) at: [u64; 2],
    pub(super) ranks: [Rank; 2],
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Strip {
    pub(super) rank: Rank,
    pub(super) cells: Vec<Cell>,
}

/// A chunk, or the bytes between two of them.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// The index of the chunk, or `None` for the bytes between chunks.
    pub(super) chunk: Option<usize>,
    /// The contents: the name of an axis and the positions on it.
    pub(super) labels: Vec<(String, String)>,
    x: [f64; 2],
}

impl Panel {
    /// Creates the panel of a group by its index, if any of it is transferred.
    pub(super) fn new(scene: &Scene<'_>, group: usize) -> Option<Self> {
        let [src, dst] = scene.sides.map(|side| side.ranks().count());
        let followed = usize::from(dst < src);
        let ranks = |route: &BoundRoute| [route.src_rank, route.dst_rank];
        let routes = scene.bound.routes.iter();
        let routes = routes.filter(|route| route.group == group && route.chunks() > 0);
        let rank = routes.clone().map(|route| ranks(route)[followed]).min()?;
        let mut chunks = Vec::new();
        for route in routes.filter(|route| ranks(route)[followed] == rank) {
            let program = route.program();
            let places = program.placed.iter();
            let mut places: Vec<_> = places.map(|p| ([p.src, p.dst], p.nest)).collect();
            places.sort_unstable_by_key(|(at, _)| at[followed]);
            for (at, nest) in places.into_iter().take(MOST_CHUNKS) {
                let nest = &program.nests[nest as usize];
                first(&nest.loops, MOST_CHUNKS as u64, at, &mut |at| {
                    let (ranks, bytes) = (ranks(route), nest.run);
                    chunks.push(Chunk { at, ranks, bytes });
                });
            }
        }
        chunks.sort_unstable_by_key(|chunk| (chunk.at[followed], *chunk));
        chunks.truncate(MOST_CHUNKS);
        let mut sides = [0, 1].map(|side| strips(scene, group, side, &chunks));
        place(&mut sides);
        Some(Self { group, followed, chunks, sides })
    }

    /// Draws the panel from `y` on. Returns its lower end.
    pub(super) fn draw(&self, svg: &mut Svg, scene: &Scene<'_>, y: f64) -> f64 {
        let name = scene.plan.group_names().nth(self.group).unwrap_or_default();
        let [above, below] = [0, 1].map(|side| caption(scene, self.group, side));
        let kinds: Vec<&str> = group_of(scene, self.group, 0).specs().iter().map(|spec| spec.kind()).collect();
        svg.line(y, "ink head", 13.0, &format!("Group {name}: {}", kinds.join(" + ")));
        let routes = scene.bound.routes.iter();
        let routes = routes.filter(|route| route.group == self.group);
        let all: u64 = routes.map(BoundRoute::chunks).sum();
        let note = format!(
            "{} of {}: the first in the memory of rank {} of {}. Grey is what lies between; widths are not to scale.",
            self.chunks.len(),
            count(all, "chunk"),
            self.chunks[0].ranks[self.followed],
            scene.called()[self.followed],
        );
        svg.line(y + 19.0, "dim note", 12.0, &note);
        svg.line(y + 46.0, "ink head", 13.0, &above);
        let mut y = y + 52.0;
        for row in rows(&self.sides[0]) {
            y += ROW;
            draw_row(svg, &row, [y, y - 3.0]);
        }
        let (top, bottom) = (y + 5.0, y + 5.0 + CELL + RIBBONS);
        self.ribbons(svg, top + CELL + 2.0, bottom - 2.0);
        for (strips, y) in self.sides.iter().zip([top, bottom]) {
            for cell in strips.iter().flat_map(|strip| &strip.cells) {
                self.cell(svg, cell, y);
            }
        }
        y = bottom + CELL + 5.0;
        for row in rows(&self.sides[1]).iter().rev() {
            draw_row(svg, row, [y, y + 10.0]);
            y += ROW;
        }
        svg.line(y + 16.0, "ink head", 13.0, &below);
        y + 20.0
    }

    /// Returns a chunk's colour: a hue for each rank on the other side, darker from chunk to chunk.
    fn colour(&self, chunk: usize) -> String {
        let strips = &self.sides[1 - self.followed];
        let rank = self.chunks[chunk].ranks[1 - self.followed];
        let index = strips.iter().position(|strip| strip.rank == rank);
        let hue = HUES[index.unwrap_or(0) % HUES.len()];
        format!("hsl({hue},58%,{}%)", 64 - 28 * chunk / self.chunks.len())
    }

    fn cell(&self, svg: &mut Svg, cell: &Cell, y: f64) {
        let [left, right] = cell.x;
        let area = [left, y, right - left, CELL];
        let Some(chunk) = cell.chunk else {
            return svg.rect(area, r#"class="cell gap""#, "bytes that are not drawn");
        };
        let labels = cell.labels.iter();
        let mut title: Vec<String> = labels.map(|(axis, at)| format!("{axis} {at}")).collect();
        title.push(exact_bytes(cell.bytes));
        let fill = format!(r#"class="cell" fill="{}""#, self.colour(chunk));
        svg.rect(area, &fill, &title.join(", "));
        let text = bytes(cell.bytes);
        if text_width(&text, SMALL) <= right - left {
            svg.text((left + right) / 2.0, y + 15.5, "lit middle small", &text);
        }
    }

    fn ribbons(&self, svg: &mut Svg, top: f64, bottom: f64) {
        let middle = (top + bottom) / 2.0;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let end = |side: usize| {
                let strip = self.sides[side].iter().find(|s| s.rank == chunk.ranks[side])?;
                let mut cells = strip.cells.iter().filter(|cell| cell.chunk.is_some());
                let same = |cell: &&Cell| (cell.at, cell.bytes) == (chunk.at[side], chunk.bytes);
                Some(cells.find(same)?.x)
            };
            if let (Some([a, b]), Some([c, d])) = (end(0), end(1)) {
                let data = format!(
                    "M{a:.1} {top:.1}C{a:.1} {middle:.1} {c:.1} {middle:.1} {c:.1} {bottom:.1}H{d:.1}\
                     C{d:.1} {middle:.1} {b:.1} {middle:.1} {b:.1} {top:.1}z"
                );
                svg.path(&data, &format!(r#"class="flow" fill="{}""#, self.colour(index)));
            }
        }
    }
}

/// Calls `each` with chunks of a nest that include its `most` lowest ones. Every chunk comes after all those that are
/// no later on any loop, so chunks with `most` such predecessors are left out.
fn first(loops: &[Loop], most: u64, at: [u64; 2], each: &mut dyn FnMut([u64; 2])) {
    let [outer, inner @ ..] = loops else {
        return each(at);
    };
    for i in 0..outer.count.min(most) {
        let at = [at[0] + i * outer.src, at[1] + i * outer.dst];
        first(inner, most / (i + 1), at, each);
    }
}

/// Returns a group of the plan as one side has it.
fn group_of<'a>(scene: &Scene<'a>, group: usize, side: usize) -> &'a Group {
    let of = [Side::Source, Side::Destination][side];
    &scene.sides[side].groups()[scene.plan.group_of(of, group)]
}

/// Formats a side's caption: `prefill: LBHSC, TP 4, blocks of 16`.
fn caption(scene: &Scene<'_>, group: usize, side: usize) -> String {
    let (deployment, group) = (scene.sides[side], group_of(scene, group, side));
    let mut text = format!("{}: {}", scene.names()[side], group.physical_order());
    for layout in group.specs().iter().filter_map(|spec| spec.conv_layout()) {
        text.push_str(&format!(", conv {}", layout.name()));
    }
    text.push_str(&format!(", TP {}", deployment.tp()));
    if deployment.pp() > 1 {
        text.push_str(&format!(", PP {}", deployment.pp()));
    }
    if !group.is_recurrent() {
        text.push_str(&format!(", blocks of {}", deployment::block(group)));
    }
    if group.allocation() == Allocation::PerLayer {
        text.push_str(", an allocation per layer");
    }
    text
}

/// Returns the memory of all ranks of a side that have one of the chunks.
fn strips(scene: &Scene<'_>, group: usize, side: usize, chunks: &[Chunk]) -> Vec<Strip> {
    let mut ranks: Vec<Rank> = chunks.iter().map(|chunk| chunk.ranks[side]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let strips = ranks.into_iter().map(|rank| {
        let memory = Memory::new(scene.sides[side], group_of(scene, group, side), rank);
        let mut runs: Vec<(u64, u64, usize)> = (chunks.iter().enumerate())
            .filter(|(_, chunk)| chunk.ranks[side] == rank)
            .map(|(number, chunk)| (chunk.at[side], chunk.bytes, number))
            .collect();
        runs.sort_unstable();
        // A source may send a chunk to several ranks.
        runs.dedup_by_key(|(at, bytes, _)| (*at, *bytes));
        let (mut cells, mut end) = (Vec::new(), 0);
        let gap =
            |from: u64, to: u64| Cell { at: from, bytes: to - from, chunk: None, labels: Vec::new(), x: [0.0; 2] };
        for (at, bytes, number) in runs {
            if end < at {
                cells.push(gap(end, at));
            }
            end = at + bytes;
            cells.push(Cell {
                chunk: Some(number),
                labels: labels(&memory, &scene.tables[side].0[group], at, end - 1),
                ..gap(at, end)
            });
        }
        // The last gap stands for everything after the last chunk.
        cells.push(gap(end, end));
        Strip { rank, cells }
    });
    strips.collect()
}

/// Describes a run of bytes by its first and last byte, since a chunk is a box along all axes.
fn labels(memory: &Memory<'_>, table: &BlockTable, first: u64, last: u64) -> Vec<(String, String)> {
    let (Some(first), Some(last)) = (memory.at(first), memory.at(last)) else {
        return Vec::new();
    };
    let mut labels = Vec::new();
    let mut label = |axis: &str, from: u64, to: u64| {
        let text = match from == to {
            true => from.to_string(),
            false => format!("{from}–{to}"),
        };
        labels.push((axis.to_owned(), text));
    };
    if memory.group.layers().ids().len() > 1 {
        label("layer", first.layer.into(), last.layer.into());
    }
    if !memory.group.is_recurrent() {
        label("block", first.block, last.block);
        let entry = |block: u64| match table {
            BlockTable::Identity => block,
            BlockTable::List(blocks) => {
                let entry = blocks.iter().position(|listed| u64::from(*listed) == block);
                entry.unwrap_or(0) as u64
            }
        };
        let state = |place: &Position| memory.in_sequence(entry(place.block), place.state);
        label(memory.state(), state(&first), state(&last));
    }
    let parts = [&first, &last].map(|place| &memory.parts[place.part]);
    if let [Some(unit), Some(same)] = parts.map(|part| &part.unit)
        && unit == same
    {
        label(unit, first.unit, last.unit);
    }
    if first.part == last.part {
        for (index, (axis, name)) in parts[0].content.iter().enumerate() {
            let (from, to) = (first.content[index], last.content[index]);
            // A complete axis needs no label.
            if to - from + 1 < parts[0].view.view.dim(*axis).extent {
                label(name, from, to);
            }
        }
    }
    if memory.parts.len() > 1 {
        let parts = parts.map(|part| part.name);
        let text = match first.part == last.part {
            true => parts[0].to_owned(),
            false => parts.join("–"),
        };
        labels.push(("part".to_owned(), text));
    }
    labels
}

/// Places all cells. All chunks have the same width, on both sides.
fn place(sides: &mut [Vec<Strip>; 2]) {
    let width = |cell: &Cell| if cell.chunk.is_some() { 1.0 } else { GAP };
    let widths = |strips: &Vec<Strip>| -> f64 {
        let cells = strips.iter().flat_map(|strip| &strip.cells);
        cells.map(width).sum::<f64>() + GAP * (strips.len() - 1) as f64
    };
    let room = WIDTH - 2.0 * MARGIN - LABELS;
    let unit = (room / widths(&sides[0]).max(widths(&sides[1]))).min(WIDEST);
    for strips in sides {
        let mut x = MARGIN + LABELS + (room - unit * widths(strips)) / 2.0;
        for strip in strips {
            for cell in &mut strip.cells {
                let right = x + unit * width(cell);
                cell.x = [x, right];
                x = right;
            }
            x += unit * GAP;
        }
    }
}

/// A row of labels: its name, and for each run of neighbouring chunks with the same label its horizontal extent and
/// that label.
type Row = (String, Vec<([f64; 2], String)>);

/// Returns the rows of labels along a side, those with the fewest changes first.
fn rows(strips: &[Strip]) -> Vec<Row> {
    let mut names: Vec<&str> = Vec::new();
    let chunks = strips.iter().flat_map(|strip| &strip.cells);
    for (name, _) in chunks.flat_map(|cell| &cell.labels) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let along = |name: &str| {
        let mut runs: Vec<([f64; 2], String)> = Vec::new();
        for strip in strips {
            let cells = strip.cells.iter().filter(|cell| cell.chunk.is_some());
            let label = |cell: &Cell| {
                let mut labels = cell.labels.iter();
                let label = labels.find(|(axis, _)| axis == name);
                label.map(|(_, label)| label.clone())
            };
            let cells: Vec<_> = cells.map(|cell| (cell.x, label(cell))).collect();
            for alike in cells.chunk_by(|a, b| a.1 == b.1) {
                if let Some(label) = &alike[0].1 {
                    runs.push(([alike[0].0[0], alike[alike.len() - 1].0[1]], label.clone()));
                }
            }
        }
        (name.to_owned(), runs)
    };
    let mut rows: Vec<Row> = names.into_iter().map(along).collect();
    rows.sort_by_key(|(_, runs)| runs.len());
    let ranks = strips.iter().map(|strip| {
        let (first, last) = (&strip.cells[0], &strip.cells[strip.cells.len() - 1]);
        ([first.x[0], last.x[1]], strip.rank.to_string())
    });
    rows.insert(0, ("rank".to_owned(), ranks.collect()));
    rows
}

/// Draws a row with its line at `y` and its labels on the baseline.
fn draw_row(svg: &mut Svg, (name, runs): &Row, [y, baseline]: [f64; 2]) {
    svg.text(MARGIN, baseline, "dim", name);
    let mut lines = String::new();
    for ([left, right], label) in runs {
        lines.push_str(&format!("M{:.1} {y:.1}H{:.1}", left + 1.0, right - 1.0));
        // If a range does not fit, its beginning may.
        let beginning = label.split_inclusive('–').next().unwrap_or_default();
        let mut texts = [label, beginning].into_iter();
        if let Some(text) = texts.find(|text| text_width(text, SMALL) <= right - left) {
            svg.text((left + right) / 2.0, baseline, "ink middle small", text);
        }
    }
    svg.path(&lines, r#"class="rule""#);
}
