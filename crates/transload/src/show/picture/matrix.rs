//! Who sends how much to whom, as a heat map.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::colour::oklch;
use super::svg::{Anchor, Area, MARGIN, Px, Svg, WIDTH, fit};
use crate::show::number::{bytes, count, exact_bytes, figures, grouped};

/// Up to so many ranks a side, cells hold numbers.
const WITH_NUMBERS: u32 = 16;

/// Beyond so many ranks a side, a cell stands for several.
const MOST_CELLS: u32 = 64;

/// Up to so many pipeline stages a side, lines stand between them.
const MOST_STAGES: u32 = 16;

/// Steps of the scale.
const LEVELS: u64 = 8;

/// How much each source rank sends each destination rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Matrix {
    /// How many ranks there are.
    pub(super) ranks: (u32, u32),
    /// Ranks of a pipeline stage.
    pub(super) stages: (u32, u32),
    pub(super) names: (String, String),
    /// By source and destination rank; pairs that share nothing are not there.
    pub(super) bytes: BTreeMap<(u32, u32), u64>,
}

/// Rules for the levels; where paper is dark, much is bright.
pub(super) fn rules() -> (String, String) {
    let (mut light, mut dark) = (String::new(), String::new());
    for level in 1..=LEVELS {
        let part = (level - 1) as f64 / (LEVELS - 1) as f64;
        let on_light = oklch(0.93 - 0.5 * part, 0.035 + 0.125 * part, 255.0);
        let on_dark = oklch(0.32 + 0.46 * part, 0.05 + 0.08 * part, 255.0);
        let _ = write!(light, ".h{level}{{fill:{on_light}}}");
        let _ = write!(dark, ".h{level}{{fill:{on_dark}}}");
        let ink = if part > 0.45 {
            ("#fff", "#10141a")
        } else {
            ("#10141a", "#fff")
        };
        let _ = write!(light, ".t{level}{{fill:{}}}", ink.0);
        let _ = write!(dark, ".t{level}{{fill:{}}}", ink.1);
    }
    (light, dark)
}

impl Matrix {
    /// Draws it from `y` on; gives where to go on.
    pub(super) fn draw(&self, svg: &mut Svg, y: f64) -> f64 {
        let lump = self.ranks.0.max(self.ranks.1).div_ceil(MOST_CELLS).max(1);
        let (rows, columns) = (self.ranks.0.div_ceil(lump), self.ranks.1.div_ceil(lump));
        let mut cells: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for ((src, dst), bytes) in &self.bytes {
            let cell = cells.entry((src / lump, dst / lump)).or_default();
            *cell = cell.saturating_add(*bytes);
        }
        let most = cells.values().copied().max().unwrap_or(0);
        svg.text(
            (MARGIN, y),
            "ink head",
            Anchor::Start,
            "Who sends how much to whom",
        );
        let y = svg.paragraph(y + 19.0, "dim note", 12.0, &self.summary(lump, most)) + 22.0;
        let numbers = rows.max(columns) <= WITH_NUMBERS;
        let left = MARGIN + 62.0;
        let side = ((WIDTH - MARGIN - left) / f64::from(columns.max(1))).min(if numbers {
            64.0
        } else {
            24.0
        });
        let height = side
            .min(if numbers { 30.0 } else { 24.0 })
            .min(440.0 / f64::from(rows.max(1)));
        let side = if numbers { side } else { height.min(side) };
        let height = if numbers { height } else { side };
        let grid = Grid {
            left,
            top: y,
            side,
            height,
        };
        self.labels(svg, &grid, lump, (rows, columns));
        let level =
            |bytes: u64| (u128::from(bytes) * u128::from(LEVELS)).div_ceil(u128::from(most.max(1)));
        if numbers {
            for row in 0..rows {
                for column in 0..columns {
                    let area = grid.area(row, column);
                    let Some(bytes) = cells.get(&(row, column)) else {
                        svg.rect(area, r#"class="grid" stroke-width=".6""#, None);
                        continue;
                    };
                    let title = format!("rank {row} to rank {column}: {}", exact_bytes(*bytes));
                    let level = level(*bytes);
                    svg.rect(area, &format!(r#"class="h{level}""#), Some(&title));
                    let at = (area.x + area.w / 2.0, area.y + area.h / 2.0 + 4.0);
                    svg.text(
                        at,
                        &format!("t{level}"),
                        Anchor::Middle,
                        &in_unit(*bytes, most).0,
                    );
                }
            }
        } else {
            let (w, h) = (
                grid.side * f64::from(columns),
                grid.height * f64::from(rows),
            );
            let outline = Area {
                x: grid.left,
                y: grid.top,
                w,
                h,
            };
            svg.rect(outline, r#"class="grid""#, None);
            for wanted in 1..=LEVELS {
                let mut data = String::new();
                for ((row, column), _) in cells.iter().filter(|(_, b)| level(**b) == wanted.into())
                {
                    let Area { x, y, w, h } = grid.area(*row, *column);
                    let (x, y, w, h) = (Px(x), Px(y), Px(w), Px(h));
                    let _ = write!(data, "M{x} {y}h{w}v{h}h-{w}z");
                }
                if !data.is_empty() {
                    svg.path(&data, &format!(r#"class="h{wanted}""#));
                }
            }
        }
        self.stage_lines(svg, &grid, lump, (rows, columns));
        let y = grid.top + grid.height * f64::from(rows) + 24.0;
        scale(svg, y, most);
        y + 20.0
    }

    fn summary(&self, lump: u32, most: u64) -> String {
        let routes = self.bytes.len() as u64;
        let pairs = u64::from(self.ranks.0) * u64::from(self.ranks.1);
        let unit = in_unit(most, most).1;
        let mut text = "The real plan".to_owned();
        if lump == 1 && self.ranks.0.max(self.ranks.1) <= WITH_NUMBERS {
            let _ = write!(text, ", in {unit}");
        }
        let ranks = |n: u32| count(n.into(), "rank");
        let _ = write!(
            text,
            ": rows are the {} of {}, columns the {} of {}",
            ranks(self.ranks.0),
            fit(&self.names.0, 220.0, 12.0),
            ranks(self.ranks.1),
            fit(&self.names.1, 220.0, 12.0),
        );
        if lump > 1 {
            let _ = write!(text, ", {lump} × {lump} of them to a cell");
        }
        let _ = write!(
            text,
            "; {} of {} pairs share something.",
            grouped(routes),
            grouped(pairs)
        );
        text
    }

    fn labels(&self, svg: &mut Svg, grid: &Grid, lump: u32, (rows, columns): (u32, u32)) {
        let every = |size: f64, wanted: f64| -> u32 {
            let steps = [1u32, 2, 4, 8, 16, 32];
            steps
                .into_iter()
                .find(|step| f64::from(*step) * size >= wanted)
                .unwrap_or(64)
        };
        let step = every(grid.height, 13.0);
        for row in (0..rows).step_by(step as usize) {
            let at = (
                grid.left - 6.0,
                grid.area(row, 0).y + grid.height.min(30.0) / 2.0 + 4.0,
            );
            svg.text(at, "dim", Anchor::End, &(row * lump).to_string());
        }
        let step = every(grid.side, 26.0);
        for column in (0..columns).step_by(step as usize) {
            let at = (grid.area(0, column).x + grid.side / 2.0, grid.top - 6.0);
            svg.text(at, "dim", Anchor::Middle, &(column * lump).to_string());
        }
        svg.text((MARGIN, grid.top - 6.0), "dim", Anchor::Start, "from \\ to");
    }

    /// Between pipeline stages, where there are several.
    fn stage_lines(&self, svg: &mut Svg, grid: &Grid, lump: u32, (rows, columns): (u32, u32)) {
        let mut data = String::new();
        let (right, bottom) = (
            grid.left + grid.side * f64::from(columns),
            grid.top + grid.height * f64::from(rows),
        );
        let lines = |ranks: u32, stage: u32| {
            let whole =
                stage > 0 && stage.is_multiple_of(lump) && ranks / stage.max(1) <= MOST_STAGES;
            let first = if whole { stage } else { ranks };
            (first..ranks)
                .step_by(stage.max(1) as usize)
                .map(move |rank| f64::from(rank / lump))
        };
        for row in lines(self.ranks.0, self.stages.0) {
            let _ = write!(
                data,
                "M{} {}H{}",
                Px(grid.left),
                Px(grid.top + row * grid.height),
                Px(right)
            );
        }
        for column in lines(self.ranks.1, self.stages.1) {
            let _ = write!(
                data,
                "M{} {}V{}",
                Px(grid.left + column * grid.side),
                Px(grid.top),
                Px(bottom)
            );
        }
        if !data.is_empty() {
            svg.path(&data, r#"class="edge" stroke-width="1.4""#);
        }
    }
}

/// Where the cells are.
struct Grid {
    left: f64,
    top: f64,
    side: f64,
    height: f64,
}

impl Grid {
    fn area(&self, row: u32, column: u32) -> Area {
        let gap = if self.height > 10.0 { 1.0 } else { 0.0 };
        Area {
            x: self.left + f64::from(column) * self.side,
            y: self.top + f64::from(row) * self.height,
            w: self.side - gap,
            h: self.height - gap,
        }
    }
}

fn scale(svg: &mut Svg, y: f64, most: u64) {
    let mut x = MARGIN + 62.0;
    svg.text((MARGIN, y), "dim", Anchor::Start, "nothing");
    svg.rect(
        Area {
            x,
            y: y - 10.0,
            w: 22.0,
            h: 13.0,
        },
        r#"class="grid" stroke-width=".6""#,
        None,
    );
    x += 28.0;
    for level in 1..=LEVELS {
        let area = Area {
            x,
            y: y - 10.0,
            w: 22.0,
            h: 13.0,
        };
        svg.rect(area, &format!(r#"class="h{level}""#), None);
        x += 22.0;
    }
    svg.text((x + 8.0, y), "dim", Anchor::Start, &bytes(most));
}

/// Bytes in the unit that suits the most there are, and that unit.
fn in_unit(value: u64, most: u64) -> (String, &'static str) {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scale = 1u64;
    let mut unit = units[0];
    for next in &units[1..] {
        if most / scale < 1024 {
            break;
        }
        scale *= 1024;
        unit = next;
    }
    let text = match value.is_multiple_of(scale) {
        true => grouped(value / scale),
        false => figures(value as f64 / scale as f64),
    };
    (text, unit)
}
