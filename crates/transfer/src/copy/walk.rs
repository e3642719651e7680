//! Walking a program: from loop nests to lists of pieces, from any byte to any byte.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::kernel::{Mover, Row};
use crate::memory::Memory;
use crate::plan::program::{Loop, Program, split_address};

/// A place between two bytes of a program, in program order.
///
/// It goes with one program, which passes as an argument so that a walk can be kept beside
/// whatever owns the program. A program that was not checked against the memories
/// ([`Memory::check`]) must not be walked.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Index of the current place; the number of places at the end.
    place: usize,
    /// Steps done in each loop of its nest.
    steps: SmallVec<[u64; 4]>,
    /// Addresses of the current chunk.
    src: u64,
    dst: u64,
    /// Bytes of the current chunk that lie behind.
    within: u64,
    /// Bytes of the program that lie behind.
    position: u64,
}

impl Walk {
    /// The start of a place, which `position` bytes of the program come before.
    pub(crate) fn at_place(program: &Program, place: usize, position: u64) -> Self {
        let mut walk = Self {
            place,
            steps: SmallVec::new(),
            src: 0,
            dst: 0,
            within: 0,
            position,
        };
        walk.enter(program);
        walk
    }

    /// `offset` bytes behind the start of a place, but still inside it; for a place that there is
    /// not, its start. Costs O(loops).
    pub(crate) fn inside_place(program: &Program, place: usize, start: u64, offset: u64) -> Self {
        let mut walk = Self::at_place(program, place, start);
        let Some(placed) = program.placed.get(place) else {
            return walk;
        };
        let nest = &program.nests[placed.nest as usize];
        walk.within = offset % nest.run;
        walk.position += offset;
        let mut chunk = offset / nest.run;
        for (l, step) in nest.loops.iter().zip(&mut walk.steps).rev() {
            *step = chunk % l.count;
            chunk /= l.count;
            walk.src += *step * l.src;
            walk.dst += *step * l.dst;
        }
        walk
    }

    /// Bytes of the program that lie behind.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Address on the source side of the next byte, and how many bytes are left of its chunk;
    /// `None` at the end.
    pub(crate) fn chunk(&self, program: &Program) -> Option<(u64, u64)> {
        let placed = program.placed.get(self.place)?;
        let run = program.nests[placed.nest as usize].run;
        Some((self.src + self.within, run - self.within))
    }

    /// Skips bytes of the current chunk, at most what is left of it.
    pub(crate) fn skip(&mut self, program: &Program, bytes: u64) {
        let Some(placed) = program.placed.get(self.place) else {
            return;
        };
        self.within += bytes;
        self.position += bytes;
        if self.within == program.nests[placed.nest as usize].run {
            self.within = 0;
            self.advance(program, 1);
        }
    }

    /// Skips what is left of the current chunk's place up to the next chunk start.
    fn enter(&mut self, program: &Program) {
        if let Some(placed) = program.placed.get(self.place) {
            let nest = &program.nests[placed.nest as usize];
            self.src = placed.src;
            self.dst = placed.dst;
            self.steps.clear();
            self.steps.resize(nest.loops.len(), 0);
        }
    }

    /// Goes on by whole chunks, which are all in the current row.
    #[inline]
    fn advance(&mut self, program: &Program, mut chunks: u64) {
        let nest = &program.nests[program.placed[self.place].nest as usize];
        // Strides are proven to stay in bounds for every step; one step further they may not.
        for (l, step) in nest.loops.iter().zip(&mut self.steps).rev() {
            *step += chunks;
            self.src = self.src.wrapping_add(l.src.wrapping_mul(chunks));
            self.dst = self.dst.wrapping_add(l.dst.wrapping_mul(chunks));
            if *step < l.count {
                return;
            }
            *step = 0;
            self.src = self.src.wrapping_sub(l.src.wrapping_mul(l.count));
            self.dst = self.dst.wrapping_sub(l.dst.wrapping_mul(l.count));
            chunks = 1;
        }
        self.place += 1;
        self.enter(program);
    }

    /// Lists pieces until the list holds `room` of them or the walk is at `end`.
    ///
    /// # Safety
    /// The program was checked against both ends, and `end` is at most its length.
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
            let nest = &program.nests[program.placed[self.place].nest as usize];
            let left = end - self.position;
            let mut chunks = Chunks {
                src: self.src,
                dst: self.dst,
                row: ONCE,
                position: self.position,
                run: nest.run,
            };
            if self.within == 0 && nest.run <= left {
                let row = nest.loops.last().copied().unwrap_or(ONCE);
                let done = self.steps.last().copied().unwrap_or(0);
                chunks.row = row;
                chunks.row.count = (row.count - done).min(left / nest.run);
                // SAFETY: these chunks are in the current row, and the caller checked the program.
                let (from, to) = unsafe { (from.row(&chunks), to.row(&chunks)) };
                let count = from.count.min(to.count);
                list.push(from, to, nest.run as usize, count as usize);
                self.position += count * nest.run;
                self.advance(program, count);
            } else {
                // Part of a chunk: the walk starts or ends inside it.
                chunks.src += self.within;
                chunks.dst += self.within;
                // SAFETY: as above, with a row of one.
                let (from, to) = unsafe { (from.row(&chunks), to.row(&chunks)) };
                let part = (nest.run - self.within).min(left);
                list.push(from, to, part as usize, 1);
                self.skip(program, part);
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

/// Moves the bytes of a program from where `walk` is up to `end`, and leaves the walk there.
///
/// # Safety
/// The program was checked against both ends. `end` is at most `total`, the program's length.
/// The bytes at both ends may be read and written as [`Memory`] says.
pub(crate) unsafe fn run<F: End, T: End>(
    program: &Program,
    walk: &mut Walk,
    ends: (&F, &T),
    (end, total): (u64, u64),
    mover: Mover,
) {
    let mut list = List::new();
    while walk.position < end {
        // SAFETY: the caller vouches for the program and `end`.
        unsafe { walk.list(program, ends, end, &mut list, LISTED) };
        let mut count = list.len;
        if walk.position < end {
            count -= AHEAD;
        } else if mover.looks_ahead && end < total {
            // SAFETY: as above; `total` is the program's length.
            unsafe {
                let mut ahead = walk.clone();
                ahead.list(program, ends, total, &mut list, count + AHEAD);
            }
        }
        // SAFETY: the pieces lie inside both ends, as checked.
        unsafe { (mover.function)(list.rows(), count) };
        list.drop_first(count);
    }
}

/// A row of chunks at one end: where its first one starts, how far it is from one to the next, and
/// for how many that holds.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    first: *mut u8,
    stride: usize,
    count: u64,
}

/// Chunks of a row, at both sides of the program.
struct Chunks {
    src: u64,
    dst: u64,
    row: Loop,
    /// How many bytes of the program come before the first of them.
    position: u64,
    run: u64,
}

/// One end of a walk: it turns addresses into pointers.
pub(crate) trait End {
    /// The first of these chunks, and as many after it as are one stride apart.
    ///
    /// # Safety
    /// All of them were found in bounds.
    unsafe fn row(&self, chunks: &Chunks) -> Ending;
}

/// The memory that a program's source addresses are in.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(pub(crate) &'a Memory);

/// The memory that a program's destination addresses are in.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a>(pub(crate) &'a Memory);

impl End for Source<'_> {
    #[inline(always)]
    unsafe fn row(&self, chunks: &Chunks) -> Ending {
        // SAFETY: the caller vouches for the chunks.
        unsafe { memory_row(self.0, chunks.src, chunks.row.src, chunks.row.count) }
    }
}

impl End for Destination<'_> {
    #[inline(always)]
    unsafe fn row(&self, chunks: &Chunks) -> Ending {
        // SAFETY: the caller vouches for the chunks.
        unsafe { memory_row(self.0, chunks.dst, chunks.row.dst, chunks.row.count) }
    }
}

#[inline(always)]
unsafe fn memory_row(memory: &Memory, address: u64, stride: u64, count: u64) -> Ending {
    // A stride that leads into another allocation is left for the next row.
    let last = address + stride * (count - 1);
    let same = split_address(address).0 == split_address(last).0;
    Ending {
        // SAFETY: the caller found the first chunk in bounds.
        first: unsafe { memory.pointer(address) },
        stride: stride as usize,
        count: if same { count } else { 1 },
    }
}

/// A buffer that holds the bytes of a program without gaps, from a position on.
#[derive(Clone, Copy)]
pub(crate) struct Dense {
    /// The buffer's first byte.
    pub(crate) start: *mut u8,
    /// How many bytes of the program come before it.
    pub(crate) position: u64,
}

impl End for Dense {
    #[inline(always)]
    unsafe fn row(&self, chunks: &Chunks) -> Ending {
        let offset = chunks.position - self.position;
        Ending {
            // Wrapping, since a walk may look ahead beyond the buffer's end.
            first: self.start.wrapping_add(offset as usize),
            stride: chunks.run as usize,
            count: chunks.row.count,
        }
    }
}

/// How many rows are listed at a time.
const LISTED: usize = 24;
const AHEAD: usize = 8;

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
        // SAFETY: the first `len` were written by `push`.
        unsafe { std::slice::from_raw_parts(self.rows.as_ptr().cast(), self.len) }
    }

    #[inline(always)]
    fn push(&mut self, from: Ending, to: Ending, run: usize, count: usize) {
        self.rows[self.len].write(Row {
            src: from.first,
            dst: to.first,
            src_stride: from.stride,
            dst_stride: to.stride,
            run,
            count,
        });
        self.len += 1;
    }

    fn drop_first(&mut self, count: usize) {
        self.rows.copy_within(count..self.len, 0);
        self.len -= count;
    }
}
