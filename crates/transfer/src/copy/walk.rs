//! Walking a program: from loop nests to rows of chunks, from any byte to any byte.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::ends::{Chunks, End, Ending};
use super::kernel::{Mover, Row};
use crate::plan::program::{Loop, Nest, Program};

/// A place between two bytes of a program, in program order.
///
/// The program itself comes as an argument, always the same one, so that a walk can be kept next to
/// its owner. It has been checked ([`Memory::check`](crate::memory::Memory::check)), which
/// is what keeps indices and sums here in range.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Index of the current place; the number of places at the end.
    place: usize,
    /// Steps done in each loop of its nest.
    steps: SmallVec<[u64; 4]>,
    /// Addresses of the current chunk.
    src: u64,
    dst: u64,
    /// Bytes of the current chunk that lie behind; less than its length.
    within: u64,
    /// Bytes of the program that lie behind.
    position: u64,
}

impl Walk {
    /// `offset` bytes into a place that `start` bytes of the program come before; its nest has more
    /// bytes than that. Or the program's end, if there is no such place. Costs O(loops).
    pub(crate) fn new(program: &Program, place: usize, start: u64, offset: u64) -> Self {
        let mut walk = Self {
            place,
            steps: SmallVec::new(),
            src: 0,
            dst: 0,
            within: 0,
            position: start,
        };
        if let Some(nest) = walk.enter(program) {
            walk.within = offset % nest.run;
            walk.position += offset;
            let mut chunk = offset / nest.run;
            for (l, step) in nest.loops.iter().zip(&mut walk.steps).rev() {
                *step = chunk % l.count;
                chunk /= l.count;
                walk.src = walk.src.wrapping_add(step.wrapping_mul(l.src));
                walk.dst = walk.dst.wrapping_add(step.wrapping_mul(l.dst));
            }
        }
        walk
    }

    /// The start of a program.
    pub(crate) fn start(program: &Program) -> Self {
        Self::new(program, 0, 0, 0)
    }

    /// Bytes of the program that lie behind.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Skips bytes of the current chunk, at most what is left of it.
    fn skip(&mut self, program: &Program, bytes: u64) {
        if let Some(nest) = self.nest(program) {
            self.within += bytes;
            self.position += bytes;
            if self.within == nest.run {
                self.within = 0;
                self.advance(program, nest, 1);
            }
        }
    }

    /// Goes back to the last multiple of `granule` in the current chunk, which may be its start.
    pub(crate) fn back_to(&mut self, granule: u64) {
        let back = self.within % granule;
        self.within -= back;
        self.position -= back;
    }

    fn nest<'p>(&self, program: &'p Program) -> Option<&'p Nest> {
        let placed = program.placed.get(self.place)?;
        program.nests.get(placed.nest as usize)
    }

    /// Goes to the first chunk of the current place, if there is one.
    fn enter<'p>(&mut self, program: &'p Program) -> Option<&'p Nest> {
        let placed = program.placed.get(self.place)?;
        let nest = program.nests.get(placed.nest as usize)?;
        (self.src, self.dst) = (placed.src, placed.dst);
        self.steps.clear();
        self.steps.resize(nest.loops.len(), 0);
        Some(nest)
    }

    /// Goes on by whole chunks, all of them in the current row.
    #[inline]
    fn advance(&mut self, program: &Program, nest: &Nest, chunks: u64) {
        let mut steps = chunks;
        // Each step was found in bounds, but a loop's end is one step further.
        for (l, step) in nest.loops.iter().zip(&mut self.steps).rev() {
            *step += steps;
            self.src = self.src.wrapping_add(l.src.wrapping_mul(steps));
            self.dst = self.dst.wrapping_add(l.dst.wrapping_mul(steps));
            if *step < l.count {
                return;
            }
            *step = 0;
            self.src = self.src.wrapping_sub(l.src.wrapping_mul(l.count));
            self.dst = self.dst.wrapping_sub(l.dst.wrapping_mul(l.count));
            steps = 1;
        }
        self.place += 1;
        self.enter(program);
    }

    /// Lists rows until the list holds `room` of them or the walk is at `end`.
    ///
    /// # Safety
    /// The program was checked against both ends, which are there, and is not shorter than `end`.
    #[inline(always)]
    unsafe fn list<F: End, T: End>(
        &mut self,
        program: &Program,
        (from, to): (&F, &T),
        end: u64,
        list: &mut List,
        room: usize,
    ) {
        while self.position < end && list.len < room {
            let Some(nest) = self.nest(program) else {
                return;
            };
            let left = end - self.position;
            let mut chunks = Chunks {
                src: self.src.wrapping_add(self.within),
                dst: self.dst.wrapping_add(self.within),
                row: ONCE,
                position: self.position,
                run: nest.run,
            };
            if self.within > 0 || nest.run > left {
                // Part of a chunk, where the walk starts or ends.
                chunks.run = (nest.run - self.within).min(left);
                // SAFETY: this is inside the chunk, which the caller vouches for.
                let (from, to) = unsafe { (from.find(&chunks), to.find(&chunks)) };
                list.push(from, to, chunks.run, 1);
                self.skip(program, chunks.run);
            } else {
                if let (Some(row), Some(done)) = (nest.loops.last(), self.steps.last()) {
                    chunks.row = *row;
                    chunks.row.count -= done;
                }
                if chunks.row.count * nest.run > left {
                    chunks.row.count = left / nest.run;
                }
                // SAFETY: these chunks are in the current row, which the caller vouches for.
                let (from, to) = unsafe { (from.find(&chunks), to.find(&chunks)) };
                let count = from.count.min(to.count);
                list.push(from, to, nest.run, count);
                self.position += count * nest.run;
                self.advance(program, nest, count);
            }
        }
    }
}

/// The one row of a nest without loops.
const ONCE: Loop = Loop {
    count: 1,
    src: 0,
    dst: 0,
};

/// Moves the bytes of a program from where `walk` is up to `end`, and leaves the walk there. Takes
/// and returns the state of a sum, as [`Move`](super::kernel::Move) does.
///
/// # Safety
/// The program was checked against both ends, and is `total` bytes long, which is not less than
/// `end`. The bytes of `from` can be read, those of `to` written, and no chunk's two ends overlap
/// unless the kernel allows it.
pub(crate) unsafe fn run<F: End, T: End>(
    program: &Program,
    walk: &mut Walk,
    ends: (&F, &T),
    (end, total): (u64, u64),
    mover: Mover,
    mut sum: u32,
) -> u32 {
    let mut list = List::new();
    while walk.position < end {
        // SAFETY: the caller vouches for the program, its ends and its length, here and below.
        unsafe { walk.list(program, ends, end, &mut list, LISTED) };
        let mut count = list.len;
        if walk.position < end {
            count -= AHEAD;
        } else if mover.looks_ahead && end < total {
            let room = count + AHEAD;
            // SAFETY: as above. These rows are only shown, so they need not be in the ends' memory.
            unsafe { walk.clone().list(program, ends, total, &mut list, room) };
        }
        // SAFETY: as above: the first `count` rows are of chunks before `end`.
        sum = unsafe { (mover.function)(list.rows(), count, sum) };
        list.drop_first(count);
    }
    sum
}

/// How many rows are listed at a time.
const LISTED: usize = 48;

/// How many of them a kernel is only shown, so that it can prefetch them.
const AHEAD: usize = 16;

/// A list of rows on the stack.
struct List {
    rows: [MaybeUninit<Row>; LISTED + AHEAD],
    len: usize,
}

impl List {
    fn new() -> Self {
        Self {
            rows: [MaybeUninit::uninit(); LISTED + AHEAD],
            len: 0,
        }
    }

    fn rows(&self) -> &[Row] {
        // SAFETY: `push` wrote the first `len`.
        unsafe { std::slice::from_raw_parts(self.rows.as_ptr().cast(), self.len) }
    }

    #[inline(always)]
    fn push(&mut self, from: Ending, to: Ending, run: u64, count: u64) {
        self.rows[self.len].write(Row {
            src: from.first,
            dst: to.first,
            src_stride: from.stride,
            dst_stride: to.stride,
            run: run as usize,
            count: count as usize,
        });
        self.len += 1;
    }

    fn drop_first(&mut self, count: usize) {
        self.rows.copy_within(count..self.len, 0);
        self.len -= count;
    }
}
