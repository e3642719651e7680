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
//! one iteration of a loop over A, those with q's value another. If each of the two iterations is a
//! single run, then the loop over A chains here, and the join had to be merged. If for every A one of
//! the iterations falls into several runs, then the join is between the end (or start) of an inner
//! loop that does not chain and its neighbour: an allowed stitch.

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

/// What came out of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes moved.
    pub bytes: u64,
    /// Chunks listed.
    pub chunks: u64,
    /// Chunks that would do.
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

    /// Joins left unmerged.
    pub fn unmerged(&self) -> u64 {
        self.chunks - self.fewest
    }
}

/// The fewest chunks that a route can consist of, by destination address.
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
                return Err(format!(
                    "{chunk:?} writes {dst:?}, which must not be touched"
                ));
            };
            let moved = &route.bytes[index];
            if moved.src != src {
                return Err(format!(
                    "{chunk:?} reads {src:?} where it should be {moved:?}"
                ));
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
    let mut slices = HashMap::new();
    let mut stitches = BTreeMap::new();
    for &(p, q) in &unmerged {
        if let Some(axis) = joins.chains(route, p, q, &mut slices) {
            return Err(format!(
                "two chunks had to be one, the loop over {axis} chains: {:?} | {:?}",
                route.bytes[p], route.bytes[q]
            ));
        }
        let differ = differing(route, p, q);
        let axes = (0..AXES.len()).filter(|&a| differ[a]).map(|a| AXES[a]);
        let axes = axes.collect::<Vec<_>>().join(", ");
        *stitches.entry(axes).or_default() += 1;
    }
    Ok(Tally {
        bytes: route.bytes.len() as u64,
        chunks: chunks.len() as u64,
        fewest: fewest(route).len() as u64,
        stitches,
    })
}

const AXES: [&str; 11] = [
    "layer",
    "spec",
    "component",
    "unit",
    "i",
    "j",
    "byte",
    "state",
    "source block",
    "destination block",
    "segment",
];

type Coordinates = [u64; AXES.len()];

fn coordinates(moved: &Moved) -> Coordinates {
    let Moved { name, entries, .. } = moved;
    [
        name.layer,
        name.spec as u64,
        name.component as u64,
        name.unit,
        name.i,
        name.j,
        name.byte,
        moved.state,
        entries[0],
        entries[1],
        // Table entries of small cases: one number for the pair.
        entries[0] << 32 | entries[1],
    ]
}

/// The axes in which two bytes differ.
fn differing(route: &Route, p: usize, q: usize) -> [bool; AXES.len()] {
    let (p, q) = (coordinates(&route.bytes[p]), coordinates(&route.bytes[q]));
    std::array::from_fn(|axis| p[axis] != q[axis])
}

/// Which axes differ, and which of them is held.
type Slicing = ([bool; AXES.len()], usize);

/// Which byte follows which on both sides.
struct Joins {
    at: BTreeMap<Address, usize>,
    after: Vec<Option<usize>>,
    before: Vec<Option<usize>>,
}

impl Joins {
    fn new(route: &Route) -> Self {
        let numbered = route.bytes.iter().enumerate();
        let at = numbered
            .map(|(n, m)| (m.dst, n))
            .collect::<BTreeMap<_, _>>();
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
        Self { at, after, before }
    }

    /// The axis over which a loop chains from byte `p` to byte `q`, if there is one.
    fn chains(
        &self,
        route: &Route,
        p: usize,
        q: usize,
        slices: &mut HashMap<Slicing, HashMap<Coordinates, u64>>,
    ) -> Option<&'static str> {
        let (from, to) = (coordinates(&route.bytes[p]), coordinates(&route.bytes[q]));
        let differ = differing(route, p, q);
        (0..AXES.len())
            .filter(|&axis| differ[axis])
            .find_map(|held| {
                let runs = slices
                    .entry((differ, held))
                    .or_insert_with(|| self.runs(route, &(differ, held)));
                let single = |c: &Coordinates| runs[&slice(c, &(differ, held))] == 1;
                (single(&from) && single(&to)).then_some(AXES[held])
            })
    }

    /// Into how many runs each slice falls.
    fn runs(&self, route: &Route, slicing: &Slicing) -> HashMap<Coordinates, u64> {
        let key = |index: usize| slice(&coordinates(&route.bytes[index]), slicing);
        let mut runs = HashMap::new();
        for index in 0..route.bytes.len() {
            let here = key(index);
            let starts = self.before[index].is_none_or(|before| key(before) != here);
            *runs.entry(here).or_default() += u64::from(starts);
        }
        runs
    }
}

/// The coordinates that all bytes of a slice share; the free ones are zero.
fn slice(coordinates: &Coordinates, (differ, held): &Slicing) -> Coordinates {
    std::array::from_fn(|axis| match differ[axis] && axis != *held {
        true => 0,
        false => coordinates[axis],
    })
}

fn end(start: Address, len: u64) -> Address {
    Address {
        offset: start.offset + len,
        ..start
    }
}
