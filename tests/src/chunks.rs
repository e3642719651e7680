//! Chunks: the fewest that a route can consist of, and what a planner made of it.
//!
//! Two bytes of a route are *joined* when the second follows the first on both sides, inside one
//! allocation each. The fewest chunks are the maximal runs of joined bytes. A planner that describes a
//! route by loops may leave some joins unmerged: those across the end of a loop that does not chain.
//! [`check`] tells these stitches from joins that had to be merged.
//!
//! **What had to be merged.** A join leads from byte p to byte q, whose coordinates (layer, spec,
//! component, unit, element, state, table entries, ...) differ in a set of axes. Take one axis A of the
//! set, let the others of the set run free, and keep everything else: the bytes with p's value of A are
//! one iteration of a loop over A, those with q's value another.
//! - Where each of the two iterations is a single run, the loop over A chains here: the join had to be
//!   merged.
//! - Where p's iteration falls into several runs and p ends the last of them, or q's does and q starts
//!   the first, the join is across the end of an inner loop that does not chain: an allowed stitch.
//! - Where neither is so for any A, the join is in the middle of a loop: it had to be merged too. But
//!   for one kind: full blocks next to partial ones are no box, and however they are cut into loops,
//!   joins remain where two pieces meet. Those between two segments and two different states of the
//!   block are counted as stitches, and may be few only ([`MOST_PIECES`]).
//!
//! A *segment* is a stretch of states inside one block of each side. States of one segment are steps of
//! one loop. Between two segments, either the state of the block is the same on both sides, and it is
//! the loop over blocks that may chain, or the states of the two segments run free.

use std::collections::{BTreeMap, HashMap};

use crate::oracle::{Address, Fault, Moved, Route};
use crate::planner::Demand;

/// Bytes contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    /// First byte at the source.
    pub src: Address,
    /// First byte at the destination.
    pub dst: Address,
    /// Bytes.
    pub len: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes moved.
    pub bytes: u64,
    /// Chunks listed.
    pub chunks: u64,
    /// The fewest chunks that would be enough.
    pub fewest: u64,
    /// Joins left unmerged where that is allowed, by the axes in which their two bytes differ.
    pub stitches: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds another tally to this one.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.chunks += other.chunks;
        self.fewest += other.fewest;
        for (axes, times) in &other.stitches {
            *self.stitches.entry(axes.clone()).or_default() += times;
        }
    }

    /// Returns the number of joins left unmerged.
    pub fn unmerged(&self) -> u64 {
        self.chunks - self.fewest
    }
}

/// Returns the fewest chunks that a route can consist of, by destination address.
pub fn fewest(route: &Route) -> Vec<Chunk> {
    let mut chunks = Vec::<Chunk>::new();
    for (dst, src) in route.map() {
        match chunks.last_mut() {
            Some(last) if end(last.src, last.len) == src && end(last.dst, last.len) == dst => {
                last.len += 1;
            }
            _ => chunks.push(Chunk { src, dst, len: 1 }),
        }
    }
    chunks
}

/// Checks that `chunks` hold every byte of `route` once and nothing else, and, if that is demanded, that
/// only allowed stitches are left between them.
pub fn check(demand: Demand, route: &Route, chunks: &[Chunk]) -> Result<Tally, Fault> {
    let joins = Joins::new(route);
    let mut seen = vec![false; route.bytes.len()];
    let mut unmerged = Vec::new();
    for chunk in chunks {
        if chunk.len == 0 {
            return Err(format!("{chunk:?} is empty"));
        }
        let mut last = 0;
        for n in 0..chunk.len {
            let (src, dst) = (end(chunk.src, n), end(chunk.dst, n));
            let Some(&index) = joins.at.get(&dst) else {
                return Err(format!("{chunk:?} writes {dst:?}, which must not be touched"));
            };
            let moved = &route.bytes[index];
            if moved.src != src {
                return Err(format!("{chunk:?} reads {src:?} where it should be {moved:?}"));
            }
            if std::mem::replace(&mut seen[index], true) {
                return Err(format!("{chunk:?} writes a second time: {moved:?}"));
            }
            last = index;
        }
        unmerged.extend(joins.after[last].map(|next| (last, next)));
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        return Err(format!("never written: {:?}", route.bytes[missing]));
    }
    if demand == Demand::Bytes {
        unmerged.clear();
    }
    let mut slices = Slices::default();
    let mut stitches = BTreeMap::new();
    let mut pieces = 0;
    for &(p, q) in &unmerged {
        let places = || format!("{:?} | {:?}", route.bytes[p], route.bytes[q]);
        match joins.judge(route, p, q, &mut slices) {
            Join::Chains(axis) => {
                let places = places();
                return Err(format!("two chunks had to be one, {axis} chains: {places}"));
            }
            Join::Inside(axes) => {
                let places = places();
                return Err(format!("two chunks had to be one, inside of {axes}: {places}"));
            }
            Join::Stitch(axes) => *stitches.entry(axes).or_default() += 1,
            Join::Pieces(axes) => {
                pieces += 1;
                *stitches.entry(format!("{axes} (pieces)")).or_default() += 1;
            }
        }
    }
    let fewest = fewest(route).len() as u64;
    if pieces > MOST_PIECES + fewest / 8 {
        return Err(format!("{pieces} joins are left between pieces, where {fewest} chunks would do"));
    }
    Ok(Tally { bytes: route.bytes.len() as u64, chunks: chunks.len() as u64, fewest, stitches })
}

/// Joins of one route that may be left between two pieces, beyond one for every eight chunks that it needs.
///
/// Such pieces have edges as long as a table has ragged blocks, times layers. In 20,000 random cases there
/// are none; a planner that took each state by itself would leave as many as there are states.
pub const MOST_PIECES: u64 = 16;

const AXES: [&str; 11] =
    ["layer", "spec", "component", "unit", "i", "j", "byte", "state", "source block", "destination block", "segment"];
const STATE: usize = 7;

type Coordinates = [u64; AXES.len()];

/// A join that was left unmerged.
enum Join {
    /// The loop over this axis chains.
    Chains(&'static str),
    /// The join is not at the end of any loop. The two bytes differ in these axes.
    Inside(String),
    /// Across the end of a loop that does not chain.
    Stitch(String),
    /// The join is between two pieces of a region that is no box.
    Pieces(String),
}

/// The joins of a route: which bytes follow which on both sides, and where they are in the loops.
struct Joins {
    at: BTreeMap<Address, usize>,
    after: Vec<Option<usize>>,
    before: Vec<Option<usize>>,
    /// Coordinates with states counted from the start of their segment, and of the source's block.
    coordinates: [Vec<Coordinates>; 2],
}

/// The axes that differ, the axis that is held, and whether states count from the start of their block rather than of
/// their segment.
type Slicing = ([bool; AXES.len()], usize, bool);

/// One iteration of a loop.
struct Slice {
    runs: u64,
    lowest: [Address; 2],
    highest: [Address; 2],
}

type Slices = HashMap<Slicing, HashMap<Coordinates, Slice>>;

impl Joins {
    fn new(route: &Route) -> Self {
        let numbered = route.bytes.iter().enumerate();
        let at = numbered.map(|(n, m)| (m.dst, n)).collect::<BTreeMap<_, _>>();
        let joined = |index: usize| {
            let moved = &route.bytes[index];
            let next = *at.get(&moved.dst.next())?;
            (route.bytes[next].src == moved.src.next()).then_some(next)
        };
        let after = (0..route.bytes.len()).map(joined).collect::<Vec<_>>();
        let mut before = vec![None; route.bytes.len()];
        for (index, next) in after.iter().enumerate() {
            if let Some(next) = next {
                before[*next] = Some(index);
            }
        }
        Self { at, after, before, coordinates: [coordinates(route, false), coordinates(route, true)] }
    }

    fn judge(&self, route: &Route, p: usize, q: usize, slices: &mut Slices) -> Join {
        let other_segment = route.bytes[p].entries != route.bytes[q].entries;
        let same_row = route.bytes[p].rows == route.bytes[q].rows;
        let by_row = other_segment && same_row;
        let coordinates = &self.coordinates[usize::from(by_row)];
        let (from, to) = (coordinates[p], coordinates[q]);
        let mut differ: [bool; AXES.len()] = std::array::from_fn(|axis| from[axis] != to[axis]);
        differ[STATE] |= other_segment && !same_row;
        let both = |moved: &Moved| [moved.src, moved.dst];
        let (end, start) = (both(&route.bytes[p]), both(&route.bytes[q]));
        let mut at_an_end = false;
        for held in (0..AXES.len()).filter(|&axis| differ[axis]) {
            if held == STATE && other_segment {
                continue;
            }
            let slicing = (differ, held, by_row);
            let slices = slices.entry(slicing).or_insert_with(|| self.slices(route, &slicing));
            let here = &slices[&key(&from, &slicing)];
            let there = &slices[&key(&to, &slicing)];
            if here.runs == 1 && there.runs == 1 {
                return Join::Chains(AXES[held]);
            }
            let any = |a: [Address; 2], b: [Address; 2]| a[0] == b[0] || a[1] == b[1];
            at_an_end |= here.runs > 1 && any(here.highest, end);
            at_an_end |= there.runs > 1 && any(there.lowest, start);
        }
        let axes = (0..AXES.len()).filter(|&axis| differ[axis]);
        let axes = axes.map(|axis| AXES[axis]).collect::<Vec<_>>().join(", ");
        match at_an_end {
            true => Join::Stitch(axes),
            false if other_segment && !same_row => Join::Pieces(axes),
            false => Join::Inside(axes),
        }
    }

    fn slices(&self, route: &Route, slicing: &Slicing) -> HashMap<Coordinates, Slice> {
        let coordinates = &self.coordinates[usize::from(slicing.2)];
        let key = |index: usize| key(&coordinates[index], slicing);
        let mut slices = HashMap::<_, Slice>::new();
        for (index, moved) in route.bytes.iter().enumerate() {
            let here = key(index);
            let starts = self.before[index].is_none_or(|before| key(before) != here);
            let slice = slices.entry(here).or_insert(Slice {
                runs: 0,
                lowest: [moved.src, moved.dst],
                highest: [moved.src, moved.dst],
            });
            slice.runs += u64::from(starts);
            for (side, address) in [moved.src, moved.dst].into_iter().enumerate() {
                slice.lowest[side] = slice.lowest[side].min(address);
                slice.highest[side] = slice.highest[side].max(address);
            }
        }
        slices
    }
}

/// Returns the coordinates that all bytes of a slice share; the free ones are zero.
fn key(coordinates: &Coordinates, (differ, held, _): &Slicing) -> Coordinates {
    std::array::from_fn(|axis| match differ[axis] && axis != *held {
        true => 0,
        false => coordinates[axis],
    })
}

fn coordinates(route: &Route, by_row: bool) -> Vec<Coordinates> {
    // Table entries of small cases: one number for the pair.
    let segment = |moved: &Moved| moved.entries[0] << 32 | moved.entries[1];
    let mut first = HashMap::<(usize, u64), u64>::new();
    for moved in &route.bytes {
        let entry = first.entry((moved.name.spec, segment(moved)));
        let state = entry.or_insert(moved.state);
        *state = moved.state.min(*state);
    }
    let all = route.bytes.iter().map(|moved| {
        let Moved { name, entries, .. } = moved;
        [
            name.layer,
            name.spec as u64,
            name.component as u64,
            name.unit,
            name.i,
            name.j,
            name.byte,
            match by_row {
                true => moved.rows[0],
                false => moved.state - first[&(name.spec, segment(moved))],
            },
            entries[0],
            entries[1],
            segment(moved),
        ]
    });
    all.collect()
}

fn end(start: Address, len: u64) -> Address {
    Address { offset: start.offset + len, ..start }
}
