//! Where each cell of each rank of a side stands in a picture.

use std::ops::Range;

use transload::layout::Rank;
use transload::transfer::plan::Side;

use super::cells::{Cell, Grain};
use super::miniature::Miniature;
use super::svg::{MARGIN, WIDTH};

/// Space for what the rows are called.
const LABELS: f64 = 62.0;

/// Between two ranks, in px.
const RANK_GAP: f64 = 20.0;

/// In place of bytes that are not shown: other blocks, padding, the way to the next allocation.
const GAP: f64 = 6.0;

/// A side's ranks from left to right.
#[derive(Debug)]
pub(super) struct Strips {
    pub(super) ranks: Vec<Strip>,
}

/// One rank's cells.
#[derive(Debug)]
pub(super) struct Strip {
    pub(super) rank: Rank,
    pub(super) cells: Vec<Cell>,
    /// For each cell, from where to where it goes.
    pub(super) xs: Vec<Range<f64>>,
}

impl Strips {
    /// Both sides, their bytes equally wide.
    pub(super) fn both(made: &Miniature, grains: &[Grain]) -> (Self, Self) {
        let (src, dst) = (
            Self::of(made, Side::Source, grains),
            Self::of(made, Side::Destination, grains),
        );
        let scale = src.scale().min(dst.scale());
        (src.placed(scale), dst.placed(scale))
    }

    fn of(made: &Miniature, side: Side, grains: &[Grain]) -> Self {
        let memory = made.memory(side);
        let ranks = made.shown(side).iter().map(|rank| Strip {
            rank: *rank,
            cells: memory.cells(*rank, grains),
            xs: Vec::new(),
        });
        // A pipeline stage may have none of the group's layers.
        let ranks = ranks.filter(|strip| !strip.cells.is_empty());
        Self {
            ranks: ranks.collect(),
        }
    }

    /// Px that hold no bytes.
    fn gaps(&self) -> f64 {
        let inside: usize = self.ranks.iter().map(Strip::gaps).sum();
        inside as f64 * GAP + self.ranks.len().saturating_sub(1) as f64 * RANK_GAP
    }

    fn bytes(&self) -> u64 {
        let cells = self.ranks.iter().flat_map(|strip| &strip.cells);
        cells.map(|cell| cell.bytes).sum()
    }

    /// Px of a byte if the side is as wide as the picture.
    fn scale(&self) -> f64 {
        (WIDTH - LABELS - 2.0 * MARGIN - self.gaps()) / self.bytes().max(1) as f64
    }

    fn placed(mut self, scale: f64) -> Self {
        let room = WIDTH - LABELS - 2.0 * MARGIN;
        let width = self.bytes() as f64 * scale + self.gaps();
        let mut x = MARGIN + LABELS + (room - width) / 2.0;
        for strip in &mut self.ranks {
            let mut end = strip.cells.first().map_or(0, |cell| cell.address);
            for cell in &strip.cells {
                if cell.address != end {
                    x += GAP;
                }
                end = cell.address + cell.bytes;
                let right = x + cell.bytes as f64 * scale;
                strip.xs.push(x..right);
                x = right;
            }
            x += RANK_GAP;
        }
        self
    }

    /// Whether there is a gap in place of bytes that are not drawn.
    pub(super) fn has_gaps(&self) -> bool {
        self.ranks.iter().any(|strip| strip.gaps() > 0)
    }
}

impl Strip {
    fn gaps(&self) -> usize {
        self.cells
            .windows(2)
            .filter(|two| !follows(&two[0], &two[1]))
            .count()
    }

    /// The cells of a run of bytes.
    pub(super) fn within(&self, address: u64, bytes: u64) -> Range<usize> {
        let first = self.cells.partition_point(|cell| cell.address < address);
        let end = self
            .cells
            .partition_point(|cell| cell.address < address + bytes);
        first..end
    }
}

/// Whether a cell begins where another ends.
pub(super) fn follows(cell: &Cell, next: &Cell) -> bool {
    cell.address + cell.bytes == next.address
}
