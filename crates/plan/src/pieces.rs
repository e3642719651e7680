//! The order of a route's bytes for a codec.
//!
//! A *piece* has the keys, or the values, of one head in one layer, for the tokens of one window: 256 of the sequence,
//! or those of them that travel. It has them token by token, and is encoded independently. So the encoding of a value
//! does not depend on any layout. It depends on the number of ranks only if replicas divide tokens inside a window.
//! Components that no codec encodes are divided into pieces too, and stay unchanged.

use std::ops::Range;

use transload_layout::Side;

use crate::codec::Rows;
use crate::program::{Loop, Nest, Placed, Program, StreamProgram};
use crate::route::{RouteGroup, Slice};
use crate::table::Lookup;
use crate::tokens::{Segment, StateRange};

/// The tokens of a window.
const WINDOW: u64 = 256;

/// The bytes of a piece that no codec encodes.
const PLAIN: u64 = 64 << 10;

/// The division of a section's bytes into pieces, which are encoded independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The content of each piece; `None` if no codec encodes it.
    pub rows: Option<Rows>,
    /// The bytes of each piece. If no codec encodes them, the last may be shorter.
    pub bytes: u64,
}

impl Pieces {
    pub(crate) const PLAIN: Self = Self { rows: None, bytes: PLAIN };
}

pub(crate) struct Coded<'a> {
    pub(crate) slice: &'a Slice,
    pub(crate) rows: Rows,
    pub(crate) slots: Range<u64>,
}

impl Coded<'_> {
    /// Returns programs of consecutive parts of the stream: windows of one size, ordered by window, layer and head.
    pub(crate) fn programs(&self, side: Side, lookup: &Lookup<'_>) -> Vec<(StreamProgram, Pieces)> {
        let windows: Vec<StateRange> = windows(self.slice.class.range).collect();
        let alike = windows.chunk_by(|a, b| a.count() == b.count());
        let programs = alike.map(|windows| {
            let pieces = Pieces { rows: Some(self.rows), bytes: windows[0].count() * self.slice.unit_bytes() };
            (self.program(windows, side, lookup), pieces)
        });
        programs.collect()
    }

    fn program(&self, windows: &[StateRange], side: Side, lookup: &Lookup<'_>) -> StreamProgram {
        let (mut program, mut end) = (Program::default(), 0);
        // The nest for each pattern of a head's tokens in a segment.
        let mut by_pattern: Vec<((u64, [Loop; 2]), u32)> = Vec::new();
        for window in windows {
            let mut cuts: Vec<(u32, u64)> = Vec::new();
            for cut in window.cuts() {
                let pattern = (cut.states, cut.strides);
                let known = by_pattern.iter().find(|(known, _)| *known == pattern);
                let nest = match known {
                    Some((_, nest)) => *nest,
                    None => {
                        let nest = program.nests.len() as u32;
                        program.nests.push(self.nest(&cut, side));
                        by_pattern.push((pattern, nest));
                        nest
                    }
                };
                let place = lookup.place(cut.at[side]);
                cuts.push((nest, self.slice.at[side].at(place)));
            }
            for slot in self.slots.clone() {
                for unit in 0..self.slice.units.count {
                    let offset = slot * self.slice.layers.stride(side) + unit * self.slice.units.stride(side);
                    for &(nest, at) in &cuts {
                        program.placed.push(Placed { nest, src: at + offset, dst: end });
                        end += program.nests[nest as usize].bytes();
                    }
                }
            }
        }
        StreamProgram::made_dense(program, end)
    }

    /// Returns the nest of a segment's tokens, of one head in one layer.
    fn nest(&self, segment: &Segment, side: Side) -> Nest {
        let state = self.slice.at.map(|origin| origin.state_stride);
        let [outer, inner] = segment.strides.map(|step| step.times(state));
        let loops =
            [outer, inner, Loop::new(segment.states, state)].into_iter().chain(self.slice.loops.iter().copied());
        let whole = Nest { loops: loops.filter(|l| l.count > 1).collect(), run: 1 };
        whole.dense(side)
    }
}

/// Returns the maximum number of places where the nests of a slice start, for this many layers.
pub(crate) fn most_places(slice: &Slice, layers: u64) -> u64 {
    let range = slice.class.range;
    let cuts = range.most_cuts(range.end.saturating_sub(range.first) / WINDOW + 2);
    let heads = layers.saturating_mul(slice.units.count);
    cuts.saturating_mul(heads)
}

impl RouteGroup {
    pub(crate) fn with_components(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let slices = self.slices.iter().filter(|slice| wanted(slice.component));
        Self { slices: slices.cloned().collect(), ..self.clone() }
    }
}

fn windows(range: StateRange) -> impl Iterator<Item = StateRange> {
    let windows = range.first / WINDOW..range.end.div_ceil(WINDOW);
    let cut = windows.map(move |window| StateRange {
        first: range.first.max(window * WINDOW),
        end: range.end.min((window + 1) * WINDOW),
        ..range
    });
    cut.filter(|window| window.count() > 0)
}
