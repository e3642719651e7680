//! What a plan becomes once block tables are bound: loop nests over chunks, and where each starts.
//!
//! A [`Program`] is the one form that all copy engines run. Between two memories its two sides are
//! two address spaces; between a memory and a byte stream ([`StreamProgram`]) the second side is
//! the offset in the stream, which is dense.
//!
//! Addresses are those of [`transload_layout::view`]: the upper bits number the allocation, so that a
//! loop over layers is a stride like any other, and since no run is 16 TiB long it never merges across
//! two allocations.

use smallvec::SmallVec;
pub use transload_layout::view::{ALLOCATION_BITS, split_address};

/// One loop of a [`Nest`]: `count` steps, each moving both sides by its stride in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// How many steps; at least 2 in a finished nest.
    pub count: u64,
    /// Bytes from one step to the next on the source side.
    pub src: u64,
    /// Bytes from one step to the next on the destination side.
    pub dst: u64,
}

/// Loops, outermost first, over chunks of `run` bytes that are contiguous on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nest {
    /// The loops, outermost first.
    pub loops: SmallVec<[Loop; 4]>,
    /// Length of each chunk in bytes; never 0.
    pub run: u64,
}

impl Nest {
    /// How many chunks the nest has.
    pub fn chunks(&self) -> u64 {
        self.loops.iter().map(|l| l.count).product()
    }

    /// How many bytes the nest moves.
    pub fn bytes(&self) -> u64 {
        self.chunks() * self.run
    }
}

/// A nest at its place: the addresses of its first chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Index into [`Program::nests`].
    pub nest: u32,
    /// Address of the first chunk's first byte on the source side.
    pub src: u64,
    /// The same on the destination side.
    pub dst: u64,
}

/// Loop nests and the places where they run, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The distinct nests; many places share one.
    pub nests: Vec<Nest>,
    /// Where they run, in the order of the bytes.
    pub placed: Vec<Placed>,
}

impl Program {
    /// How many bytes the program moves.
    pub fn bytes(&self) -> u64 {
        self.placed
            .iter()
            .map(|p| self.nests[p.nest as usize].bytes())
            .sum()
    }

    /// Calls `chunk` with source address, destination address and length of every chunk, in order.
    pub fn for_each_chunk(&self, mut chunk: impl FnMut(u64, u64, u64)) {
        for placed in &self.placed {
            let nest = &self.nests[placed.nest as usize];
            expand(&nest.loops, nest.run, placed.src, placed.dst, &mut chunk);
        }
    }

    /// How many chunks the program moves.
    pub fn chunks(&self) -> u64 {
        self.placed
            .iter()
            .map(|p| self.nests[p.nest as usize].chunks())
            .sum()
    }
}

fn expand(loops: &[Loop], run: u64, src: u64, dst: u64, chunk: &mut impl FnMut(u64, u64, u64)) {
    match loops {
        [] => chunk(src, dst, run),
        [last] => {
            for i in 0..last.count {
                chunk(src + i * last.src, dst + i * last.dst, run);
            }
        }
        [outer, inner @ ..] => {
            for i in 0..outer.count {
                expand(inner, run, src + i * outer.src, dst + i * outer.dst, chunk);
            }
        }
    }
}

/// A program between one memory (its `src` side) and a byte stream (its `dst` side).
///
/// The stream is dense: the first place starts at stream offset 0, each next one where the one
/// before ended, and inside a nest the stream strides are the products of the inner extents. A
/// gather runs it from memory to stream, a scatter from stream to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamProgram {
    program: Program,
    bytes: u64,
}

impl StreamProgram {
    /// Wraps a program whose `dst` side is dense as described above (checked in debug builds).
    pub fn new(program: Program) -> Self {
        let mut end = 0;
        for placed in &program.placed {
            let nest = &program.nests[placed.nest as usize];
            debug_assert_eq!(placed.dst, end, "places follow one another in the stream");
            let mut dense = nest.run;
            for l in nest.loops.iter().rev() {
                debug_assert_eq!(l.dst, dense, "loops are dense in the stream");
                dense *= l.count;
            }
            end += dense;
        }
        Self {
            program,
            bytes: end,
        }
    }

    /// The program, with the memory as `src` and the stream as `dst`.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Length of the stream in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
