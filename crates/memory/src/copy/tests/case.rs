//! Random programs and memories that fit them.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use smallvec::SmallVec;

use transload_memory::{Access, Memory};
use transload_plan::program::{ALLOCATION_BITS, Loop, Nest, Placed, Program, StreamProgram};

/// A program whose places do not overlap on either side, with the lengths of each side's allocations.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) src: Vec<usize>,
    pub(crate) dst: Vec<usize>,
}

const ALLOCATIONS: usize = 3;

#[derive(Clone, Debug)]
struct Shape {
    /// The order of the loops in memory, innermost first.
    order: Vec<Index>,
    gaps: Vec<u64>,
    /// Whether the first loop leads from one allocation to the next.
    far: bool,
}

struct Side {
    strides: Vec<u64>,
    reach: u64,
    allocations: usize,
}

impl Shape {
    fn work_out(&self, counts: &[u64], run: u64) -> Side {
        let far = self.far && counts.first().is_some_and(|c| *c <= ALLOCATIONS as u64);
        let mut left: Vec<usize> = (usize::from(far)..counts.len()).collect();
        let mut strides = vec![1 << ALLOCATION_BITS; counts.len()];
        let mut reach = run;
        for order in &self.order {
            if left.is_empty() {
                break;
            }
            let i = left.remove(order.index(left.len()));
            strides[i] = reach + self.gaps[i];
            reach += strides[i] * (counts[i] - 1);
        }
        Side { strides, reach, allocations: if far { counts[0] as usize } else { 1 } }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let gap = prop_oneof![
        3 => Just(0),
        2 => (0..8u64).prop_map(|lines| lines * 64),
        1 => 0..200u64,
    ];
    (vec(any::<Index>(), 4), vec(gap, 4), prop::bool::weighted(0.3)).prop_map(|(order, gaps, far)| Shape {
        order,
        gaps,
        far,
    })
}

fn run() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..300u64,
        3 => (1..20u64).prop_map(|n| n * 16),
        3 => (1..20u64).prop_map(|n| n * 64),
        2 => 1..5000u64,
        1 => 4000..9000u64,
    ]
}

fn nest() -> impl Strategy<Value = (Vec<u64>, u64, Shape, Shape)> {
    (vec(1..6u64, 0..=4), run(), shape(), shape()).prop_map(|(mut counts, run, src, dst)| {
        while counts.iter().product::<u64>() * run > 20_000 {
            counts.pop();
        }
        (counts, run, src, dst)
    })
}

/// Sometimes generates one of the few runs that are long enough for a code path of their own.
fn wide() -> impl Strategy<Value = Option<(Vec<u64>, u64, Shape, Shape)>> {
    let run = prop::sample::select(vec![131_072, 150_001]);
    let nest = (run, shape(), shape()).prop_map(|(run, src, dst)| (vec![], run, src, dst));
    prop::option::weighted(0.1, nest)
}

fn start(lined: bool, end: u64, skip: u64) -> u64 {
    if lined { (end + skip).next_multiple_of(64) } else { end + skip }
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let place = (any::<Index>(), 0..ALLOCATIONS, 0..ALLOCATIONS, 0..80u64, 0..80u64);
    let places = vec((place, any::<u64>()), 1..6);
    (vec(nest(), 1..4), places, any::<bool>(), wide()).prop_map(|(mut nests, places, lined, wide)| {
        nests.extend(wide);
        let mut case = Case { program: Program::default(), src: vec![0; ALLOCATIONS], dst: vec![0; ALLOCATIONS] };
        let mut sides = Vec::new();
        for (counts, run, src, dst) in &nests {
            let (src, dst) = (src.work_out(counts, *run), dst.work_out(counts, *run));
            let loops = (0..counts.len()).map(|i| Loop { count: counts[i], src: src.strides[i], dst: dst.strides[i] });
            case.program.nests.push(Nest { loops: loops.collect(), run: *run });
            sides.push((src, dst));
        }
        let mut placed = Vec::new();
        for ((nest, src_in, dst_in, src_skip, dst_skip), rank) in places {
            let nest = nest.index(nests.len());
            let put = |side: &Side, first: usize, skip: u64, ends: &mut [usize]| {
                let first = first.min(ALLOCATIONS - side.allocations);
                let within = &mut ends[first..first + side.allocations];
                let end = within.iter().copied().max().unwrap_or(0) as u64;
                let offset = start(lined, end, skip);
                within.fill((offset + side.reach) as usize);
                (first as u64) << ALLOCATION_BITS | offset
            };
            let src = put(&sides[nest].0, src_in, src_skip, &mut case.src);
            let dst = put(&sides[nest].1, dst_in, dst_skip, &mut case.dst);
            let nest = nest as u32;
            placed.push((rank, Placed { nest, src, dst }));
        }
        // The order of addresses is random.
        placed.sort_by_key(|(rank, _)| *rank);
        case.program.placed = placed.into_iter().map(|(_, placed)| placed).collect();
        case
    })
}

pub(crate) fn streamed(program: &Program) -> StreamProgram {
    let mut program = program.clone();
    for nest in &mut program.nests {
        let mut dense = nest.run;
        let mut loops: SmallVec<[Loop; 4]> = nest.loops.clone();
        for l in loops.iter_mut().rev() {
            l.dst = dense;
            dense *= l.count;
        }
        nest.loops = loops;
    }
    let mut end = 0;
    for placed in &mut program.placed {
        placed.dst = end;
        end += program.nests[placed.nest as usize].bytes();
    }
    StreamProgram::new(program).unwrap()
}

/// Buffers with margins on both sides, for copies between them.
pub(crate) struct Arena {
    buffers: Arc<Vec<Buffer>>,
    lens: Vec<usize>,
    skew: usize,
}

#[derive(Clone)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Bytes that copies change through pointers, so that no slice of them may exist while a copy runs.
struct Buffer(*mut [Line]);

// SAFETY: a pointer to bytes that this value owns.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `Arena::new`.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

const MARGIN: usize = 128;

impl Arena {
    /// Makes buffers of `lens`, each starting `skew` bytes after a line, with bytes from `fill`.
    pub(crate) fn new(lens: &[usize], skew: usize, mut fill: impl FnMut(usize) -> u8) -> Self {
        let buffer = |len: &usize| {
            let lines = (len + 3 * MARGIN).div_ceil(64);
            let lines: Box<[Line]> =
                (0..lines).map(|line| Line(std::array::from_fn(|i| fill(line * 64 + i)))).collect();
            Buffer(Box::into_raw(lines))
        };
        Self { buffers: Arc::new(lens.iter().map(buffer).collect()), lens: lens.to_vec(), skew: MARGIN + skew % 64 }
    }

    pub(crate) fn memory(&self) -> Memory {
        let starts = self.buffers.iter().map(|b| b.0.cast::<u8>());
        let parts: Vec<_> = starts.map(|start| start.wrapping_add(self.skew)).zip(self.lens.iter().copied()).collect();
        // SAFETY: the buffers are longer than this by their margins and live as long as the keeper;
        // slices of them are only made between copies.
        unsafe { Memory::from_raw_parts(&parts, Access::ReadWrite, Some(self.buffers.clone())) }
            .expect("a few small buffers")
    }

    /// Returns the bytes of the buffers, including margins.
    pub(crate) fn all(&self) -> Vec<Vec<u8>> {
        let bytes = |buffer: &Buffer| {
            // SAFETY: the buffer exists, and no copy runs.
            let lines = unsafe { &*buffer.0 };
            lines.iter().flat_map(|line| line.0).collect()
        };
        self.buffers.iter().map(bytes).collect()
    }

    pub(crate) fn inside(&self) -> Vec<Vec<u8>> {
        let all = self.all().into_iter().zip(&self.lens);
        all.map(|(all, len)| all[self.skew..self.skew + len].to_vec()).collect()
    }

    /// Returns the bytes of the buffers, including margins, with other bytes in the allocations.
    pub(crate) fn with_inside(&self, inside: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut all = self.all();
        for (all, inside) in all.iter_mut().zip(inside) {
            all[self.skew..self.skew + inside.len()].copy_from_slice(inside);
        }
        all
    }
}

/// Generates bytes that differ from their neighbours.
pub(crate) fn noise(seed: u64) -> impl FnMut(usize) -> u8 {
    let mut state = seed | 1;
    move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    }
}
