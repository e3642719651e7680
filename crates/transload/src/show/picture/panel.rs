//! One group of a transfer: the source's memory above, the destination's below, and the chunks between.

mod describe;

use transload::transfer::plan::Side;

use super::cells::grains;
use super::miniature::{Miniature, Scene};
use super::paint::{self, Paint};
use super::rows::{self, Row};
use super::strip::{Strip, Strips};
use super::svg::{Anchor, Area, MARGIN, Svg, WIDTH, fit};
use super::words;
use crate::show::number::grouped;

/// Height of the cells.
const CELL: f64 = 26.0;

/// Between the two sides.
const RIBBONS: f64 = 150.0;

/// Outlines of chunks; sources of cells that do not travel.
pub(super) const RULES: &str = ".flow{fill-opacity:.42}.chunk{fill:none;stroke:#59636e;stroke-width:.6}\
    .cells{stroke:#fff;stroke-width:.7}";
pub(super) const DARK: &str = ".flow{fill-opacity:.5}.chunk{stroke:#9198a1}.cells{stroke:#0d1117}";

/// A group of a picture, laid out.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) made: Miniature,
    pub(super) src: Strips,
    pub(super) dst: Strips,
    pub(super) paint: Paint,
    pub(super) chunks: Vec<Chunk>,
}

/// A run of cells that is contiguous on both sides: indices of strips, and of their cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) src: (usize, std::ops::Range<usize>),
    pub(super) dst: (usize, std::ops::Range<usize>),
}

impl Panel {
    /// The group number `group` of a plan.
    pub(super) fn new(scene: &Scene<'_>, group: usize) -> Option<Self> {
        let made = Miniature::new(scene, group)?;
        let memory = made.memory(Side::Source);
        let grains = grains(&memory, &made.memory(Side::Destination));
        let (src, dst) = Strips::both(&made, &grains);
        let cells = src
            .ranks
            .iter()
            .chain(&dst.ranks)
            .flat_map(|strip| &strip.cells);
        let paint = Paint::new(memory.group, &grains, cells);
        let mut chunks = Vec::new();
        for route in made
            .bound
            .routes
            .iter()
            .filter(|route| route.group == made.group)
        {
            let of = |strips: &Strips, rank| strips.ranks.iter().position(|s| s.rank == rank);
            let ends = (of(&src, route.src_rank), of(&dst, route.dst_rank));
            let (Some(a), Some(b)) = ends else {
                continue;
            };
            route.program().for_each_chunk(|from, to, bytes| {
                chunks.push(Chunk {
                    src: (a, src.ranks[a].within(from, bytes)),
                    dst: (b, dst.ranks[b].within(to, bytes)),
                });
            });
        }
        Some(Self {
            made,
            src,
            dst,
            paint,
            chunks,
        })
    }

    /// Draws it from `y` on; gives where to go on.
    pub(super) fn draw(&self, svg: &mut Svg, scene: &Scene<'_>, group: usize, y: f64) -> f64 {
        let mut y = self.heading(svg, scene, group, y);
        let rows = |strips: &Strips, side| {
            Row::of(
                strips,
                &self.paint,
                self.made.shown(side).len() != strips.ranks.len(),
            )
        };
        svg.text(
            (MARGIN, y),
            "ink head",
            Anchor::Start,
            &self.side(Side::Source, scene, group),
        );
        y += 8.0;
        for row in rows(&self.src, Side::Source) {
            y += rows::HEIGHT;
            row.draw(svg, y, false);
        }
        y += 5.0;
        self.strips(svg, &self.src, y, |chunk| &chunk.src);
        let (top, bottom) = (y + CELL + 2.0, y + CELL + RIBBONS);
        self.ribbons(svg, top, bottom - 2.0);
        self.strips(svg, &self.dst, bottom, |chunk| &chunk.dst);
        y = bottom + CELL + 5.0;
        let below = rows(&self.dst, Side::Destination);
        for row in below.iter().rev() {
            row.draw(svg, y, true);
            y += rows::HEIGHT;
        }
        y += 16.0;
        svg.text(
            (MARGIN, y),
            "ink head",
            Anchor::Start,
            &self.side(Side::Destination, scene, group),
        );
        let gaps = self.src.has_gaps() || self.dst.has_gaps();
        let travels = |strips: &Strips, of: &dyn Fn(&Chunk) -> usize| {
            let cells: usize = strips.ranks.iter().map(|strip| strip.cells.len()).sum();
            self.chunks.iter().map(of).sum::<usize>() >= cells
        };
        let idle = !travels(&self.src, &|chunk| chunk.src.1.len())
            || !travels(&self.dst, &|chunk| chunk.dst.1.len());
        self.paint.legend(svg, y + 26.0, gaps, idle)
    }

    fn heading(&self, svg: &mut Svg, scene: &Scene<'_>, group: usize, y: f64) -> f64 {
        let name = scene.plan.group_names().nth(group).unwrap_or_default();
        let kinds: Vec<&str> = self
            .made
            .memory(Side::Source)
            .group
            .specs()
            .iter()
            .map(|s| s.kind())
            .collect();
        let title = format!("group {name}: {}", kinds.join(" + "));
        let title = fit(&title, WIDTH - 2.0 * MARGIN, 13.0);
        svg.text((MARGIN, y), "ink head", Anchor::Start, &title);
        let drawn = match self.made.scaled.is_empty() {
            true => "Drawn as it is".to_owned(),
            false => format!("Drawn scaled down: {}", self.made.scaled.join(", ")),
        };
        let text = format!("{drawn}. Here {}.", self.chunk_words());
        svg.paragraph(y + 19.0, "dim note", 12.0, &text) + 14.0
    }

    /// `prefill: TP 4, blocks of 16, LBSHC`, as it really is.
    fn side(&self, side: Side, scene: &Scene<'_>, group: usize) -> String {
        let (deployment, role) = match side {
            Side::Source => (scene.src, "source"),
            Side::Destination => (scene.dst, "destination"),
        };
        let group = &deployment.groups()[scene.plan.group_of(side, group)];
        let order = group.physical_order();
        let name = words::side(deployment, role);
        let mut text = format!("{}: {order}", fit(&name, 300.0, 13.0));
        for layout in group.specs().iter().filter_map(|spec| spec.conv_layout()) {
            text.push_str(&format!(", conv {}", words::conv(layout)));
        }
        text.push_str(&format!(", TP {}", deployment.tp()));
        if deployment.pp() > 1 {
            text.push_str(&format!(", PP {}", deployment.pp()));
        }
        if !group.is_recurrent() {
            text.push_str(&format!(", blocks of {}", grouped(group.block_size())));
        }
        if group.allocation() == transload::layout::placement::Allocation::PerLayer {
            text.push_str(", an allocation per layer");
        }
        text
    }

    fn strips<'a>(
        &'a self,
        svg: &mut Svg,
        strips: &Strips,
        y: f64,
        end: impl Fn(&'a Chunk) -> &'a (usize, std::ops::Range<usize>),
    ) {
        svg.open(r#"class="cells""#);
        for (index, strip) in strips.ranks.iter().enumerate() {
            let mut travels = vec![false; strip.cells.len()];
            for (_, cells) in self.chunks.iter().map(&end).filter(|(of, _)| *of == index) {
                travels[cells.clone()].fill(true);
            }
            for ((cell, x), travels) in strip.cells.iter().zip(&strip.xs).zip(travels) {
                let area = Area {
                    x: x.start,
                    y,
                    w: x.end - x.start,
                    h: CELL,
                };
                let title = self.paint.words(&cell.is);
                match travels {
                    true => paint::cell(svg, area, &self.paint.look(&cell.is), &title),
                    false => svg.rect(area, r#"class="idle""#, Some(&title)),
                }
            }
        }
        svg.close();
    }

    fn ribbons(&self, svg: &mut Svg, top: f64, bottom: f64) {
        // Chunks are told apart by a sliver of paper.
        const INSET: f64 = 0.4;
        svg.open(r#"class="flow""#);
        for chunk in &self.chunks {
            let (src, dst) = (&self.src.ranks[chunk.src.0], &self.dst.ranks[chunk.dst.0]);
            let pairs = chunk.src.1.clone().zip(chunk.dst.1.clone());
            for (a, b) in pairs {
                let x = |strip: &Strip, cell: usize| (strip.xs[cell].start, strip.xs[cell].end);
                let look = self.paint.look(&src.cells[a].is);
                let data = paint::ribbon(x(src, a), x(dst, b), top, bottom);
                svg.path(&data, &format!(r#"fill="{}""#, look.fill));
            }
        }
        svg.close();
        svg.open(r#"class="chunk""#);
        for chunk in &self.chunks {
            let end = |strips: &Strips, (index, cells): &(usize, std::ops::Range<usize>)| {
                let xs = strips.ranks[*index].xs.get(cells.clone())?;
                Some((xs.first()?.start + INSET, xs.last()?.end - INSET))
            };
            if let (Some(a), Some(b)) = (end(&self.src, &chunk.src), end(&self.dst, &chunk.dst)) {
                svg.path(&paint::ribbon(a, b, top, bottom), "");
            }
        }
        svg.close();
    }
}
