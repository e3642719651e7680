//! Walking a program: it turns loop nests into rows of chunks, from any byte to any byte.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::checksum::Crc32c;
use super::kernel::{Row, Traffic, Tuning};
use crate::Memory;
use transload_plan::program::{Loop, Nest, Program, split_address};

/// A position between two bytes of a program, in program order.
///
/// The program itself is passed to each call, always the same one, so that a walk can be stored next to its owner. It
/// was checked ([`Memory::check`](crate::Memory::check)), which keeps indices and sums here in range.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// The index of the current place; the number of places at the end.
    place: usize,
    steps: SmallVec<[u64; 4]>,
    /// The addresses of the current chunk.
    src: u64,
    dst: u64,
    /// The position in the current chunk; less than its length.
    within: u64,
    pub(super) position: u64,
}

impl Walk {
    /// Makes a walk that starts `offset` bytes into a place, whose nest has more bytes than that. `start` bytes of the
    /// program precede the place. If there is no such place, the walk is at the program's end. It takes O(loops).
    pub(crate) fn new(program: &Program, place: usize, start: u64, offset: u64) -> Self {
        let mut walk = Self { place, steps: SmallVec::new(), src: 0, dst: 0, within: 0, position: start };
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

    /// Moves back to the last multiple of `granule` in the current chunk, which may be its start.
    pub(crate) fn back_to(&mut self, granule: u64) {
        let back = self.within % granule;
        self.within -= back;
        self.position -= back;
    }

    fn nest<'p>(&self, program: &'p Program) -> Option<&'p Nest> {
        let placed = program.placed.get(self.place)?;
        program.nests.get(placed.nest as usize)
    }

    fn enter<'p>(&mut self, program: &'p Program) -> Option<&'p Nest> {
        let placed = program.placed.get(self.place)?;
        let nest = program.nests.get(placed.nest as usize)?;
        (self.src, self.dst) = (placed.src, placed.dst);
        self.steps.clear();
        self.steps.resize(nest.loops.len(), 0);
        Some(nest)
    }

    /// Moves forward by whole chunks, all of them in the current row.
    #[inline]
    fn advance(&mut self, program: &Program, nest: &Nest, chunks: u64) {
        let mut steps = chunks;
        // Each step is in bounds, but the end of a loop is one step further, so this must wrap.
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

    /// Moves the bytes of a program from here to `end`, and adds them to a sum if there is one. They go from the memory
    /// of the source addresses to the other end, or with `BACK` in the opposite direction.
    ///
    /// # Safety
    /// The program was checked against both ends, and is `total` bytes long, which is at least `end`. The bytes to be
    /// read are readable and those to be written writable, and no chunk's two ends overlap unless the kernel allows it.
    pub(crate) unsafe fn run<T: End, const BACK: bool>(
        &mut self,
        program: &Program,
        ends: (&Memory, &T),
        (end, total): (u64, u64),
        (tuning, traffic): (Tuning, Traffic),
        sum: Option<&mut Crc32c>,
    ) {
        let mover = tuning.mover(traffic, total, sum.is_some());
        let mut no_sum = Crc32c::new();
        let sum = sum.unwrap_or(&mut no_sum);
        let mut list = List::new();
        sum.pass(end - self.position, |mut state| {
            while self.position < end {
                // SAFETY: the caller vouches for the program, its ends and its length, here and below.
                unsafe { self.list::<T, BACK>(program, ends, end, &mut list, LISTED) };
                let mut count = list.len;
                if self.position < end {
                    count -= AHEAD;
                } else if mover.looks_ahead && end < total {
                    let (mut ahead, room) = (self.clone(), count + AHEAD);
                    // SAFETY: as above. These rows are not accessed, so they need not be in the ends' memory.
                    unsafe { ahead.list::<T, BACK>(program, ends, total, &mut list, room) };
                }
                // SAFETY: as above: the first `count` rows are of chunks before `end`.
                state = unsafe { (mover.function)(list.rows(), count, state) };
                list.drop_first(count);
            }
            state
        });
    }

    /// Lists rows until the list has `room` of them or the walk is at `end`.
    ///
    /// # Safety
    /// The program was checked against both ends, which exist, and is not shorter than `end`.
    #[inline(always)]
    unsafe fn list<T: End, const BACK: bool>(
        &mut self,
        program: &Program,
        (memory, other): (&Memory, &T),
        end: u64,
        list: &mut List,
        room: usize,
    ) {
        while self.position < end && list.len < room {
            let Some(nest) = self.nest(program) else {
                return;
            };
            let left = end - self.position;
            let (mut run, mut row) = (nest.run, ONCE);
            if self.within > 0 || run > left {
                // A part of a chunk, where the walk starts or ends.
                run = (run - self.within).min(left);
            } else {
                if let (Some(l), Some(done)) = (nest.loops.last(), self.steps.last()) {
                    row = *l;
                    row.count -= done;
                }
                if row.count * run > left {
                    row.count = left / run;
                }
            }
            // SAFETY: the position is inside the chunk, or the chunks are in the current row, for which the caller
            // vouches.
            let ((src, at_src), (dst, at_dst)) = unsafe {
                (
                    memory.find(self.src.wrapping_add(self.within), row.src, row.count),
                    other.find(self.dst.wrapping_add(self.within), row.dst, row.count),
                )
            };
            row.count = at_src.min(at_dst);
            list.push::<BACK>((src, dst), row, run);
            self.position += row.count * run;
            self.within += run;
            if self.within == nest.run {
                self.within = 0;
                self.advance(program, nest, row.count);
            }
        }
    }
}

/// The row of a nest without loops.
const ONCE: Loop = Loop { count: 1, src: 0, dst: 0 };

/// One end of a walk: it converts the addresses of one side of a program to pointers.
pub(crate) trait End {
    /// Returns the pointer of a row's first chunk, and the number of chunks, at least 1, for which the stride is valid
    /// there.
    ///
    /// # Safety
    /// If this is a memory, a check has found all of the chunks in it.
    unsafe fn find(&self, address: u64, stride: u64, count: u64) -> (*mut u8, u64);
}

impl End for Memory {
    #[inline(always)]
    unsafe fn find(&self, address: u64, stride: u64, count: u64) -> (*mut u8, u64) {
        // A stride into another allocation is left to the next row.
        let last = address + stride * (count - 1);
        let same = split_address(address).0 == split_address(last).0;
        // SAFETY: the caller vouches for the first chunk.
        let first = unsafe { self.pointer(address) };
        (first, if same { count } else { 1 })
    }
}

/// A buffer that contains the bytes of a stream from a position on.
pub(crate) struct Dense {
    pub(crate) start: *mut u8,
    /// The number of the stream's bytes before it.
    pub(crate) position: u64,
}

impl End for Dense {
    #[inline(always)]
    unsafe fn find(&self, address: u64, _: u64, count: u64) -> (*mut u8, u64) {
        let offset = address - self.position;
        // Wrapping, since a walk that looks ahead passes the buffer's end.
        (self.start.wrapping_add(offset as usize), count)
    }
}

const LISTED: usize = 48;

/// The number of listed rows that a kernel does not move, but may prefetch.
const AHEAD: usize = 16;

struct List {
    rows: [MaybeUninit<Row>; LISTED + AHEAD],
    len: usize,
}

impl List {
    fn new() -> Self {
        Self { rows: [MaybeUninit::uninit(); LISTED + AHEAD], len: 0 }
    }

    fn rows(&self) -> &[Row] {
        // SAFETY: `push` wrote the first `len`.
        unsafe { std::slice::from_raw_parts(self.rows.as_ptr().cast(), self.len) }
    }

    #[inline(always)]
    fn push<const BACK: bool>(&mut self, (src, dst): (*mut u8, *mut u8), row: Loop, run: u64) {
        let (src, dst) = ((src, row.src as usize), (dst, row.dst as usize));
        let (from, to) = if BACK { (dst, src) } else { (src, dst) };
        self.rows[self.len].write(Row {
            src: from.0,
            dst: to.0,
            src_stride: from.1,
            dst_stride: to.1,
            run: run as usize,
            count: row.count as usize,
        });
        self.len += 1;
    }

    fn drop_first(&mut self, count: usize) {
        self.rows.copy_within(count..self.len, 0);
        self.len -= count;
    }
}
