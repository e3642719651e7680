//! Programs: plans bound to block tables, as loop nests over chunks with their start addresses.
//!
//! All copy engines run the same form, a [`Program`]. Between two memories, its sides are two address spaces. Between a
//! memory and a byte stream ([`StreamProgram`]), the second side is the offset in the stream, which is dense.
//!
//! Addresses are those of [`split_address`]. The upper bits number the allocation, so that a loop over layers is a
//! stride like any other. An allocation has at most half the bytes that an offset can hold
//! ([`MAX_ALLOCATION_BYTES`](transload_layout::MAX_ALLOCATION_BYTES)), so a run is always shorter than a step into the
//! next allocation, and never continues there.

use smallvec::SmallVec;
use thiserror::Error;
use transload_layout::Side;
pub use transload_layout::{ALLOCATION_BITS, split_address};

use crate::sides::Sides;

/// One loop of a [`Nest`]: `count` steps, each moving both sides by its stride in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// The number of steps, at least 2 in a finished nest.
    pub count: u64,
    /// Bytes from one step to the next on the source side.
    pub src: u64,
    /// Bytes from one step to the next on the destination side.
    pub dst: u64,
}

impl Loop {
    /// No loop: one step.
    pub(crate) const ONCE: Self = Self { count: 1, src: 0, dst: 0 };

    pub(crate) fn new(count: u64, strides: Sides<u64>) -> Self {
        let Sides { src, dst } = strides;
        Self { count, src, dst }
    }

    /// Returns the loop over the same steps, each of which is this many bytes long.
    pub(crate) fn times(self, bytes: Sides<u64>) -> Self {
        Self { src: self.src * bytes.src, dst: self.dst * bytes.dst, ..self }
    }

    pub(crate) fn stride(&self, side: Side) -> u64 {
        match side {
            Side::Source => self.src,
            Side::Destination => self.dst,
        }
    }
}

/// Loops, outermost first, over chunks of `run` bytes that are contiguous on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nest {
    /// The loops, outermost first.
    pub loops: SmallVec<[Loop; 4]>,
    /// The length of each chunk in bytes, never 0.
    pub run: u64,
}

impl Nest {
    /// Returns the number of chunks of the nest.
    pub fn chunks(&self) -> u64 {
        self.loops.iter().map(|l| l.count).product()
    }

    /// Returns the number of bytes that the nest moves.
    pub fn bytes(&self) -> u64 {
        self.chunks() * self.run
    }

    /// Returns one side of the nest: between its own strides and a dense stream in loop order. Loops that chain in this
    /// side's memory are merged, since they always chain in the stream.
    pub(crate) fn dense(&self, side: Side) -> Self {
        let mut dense = Self { loops: SmallVec::new(), run: self.run };
        let mut stream = self.run;
        for l in self.loops.iter().rev() {
            let stride = l.stride(side);
            match dense.loops.last_mut() {
                None if stride == dense.run => dense.run *= l.count,
                Some(inner) if stride == inner.src * inner.count => inner.count *= l.count,
                _ => dense.loops.push(Loop { count: l.count, src: stride, dst: stream }),
            }
            stream *= l.count;
        }
        dense.loops.reverse();
        dense
    }
}

/// A nest at a place: the addresses of its first chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// An index into [`Program::nests`].
    pub nest: u32,
    /// The address of the first chunk's first byte on the source side.
    pub src: u64,
    /// The address of its first byte on the destination side.
    pub dst: u64,
}

/// Loop nests and the places where they run, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The distinct nests; many places share one.
    pub nests: Vec<Nest>,
    /// The places where they run, in the order of the bytes.
    pub placed: Vec<Placed>,
}

impl Program {
    /// Returns the number of bytes that the program moves.
    pub fn bytes(&self) -> u64 {
        self.placed_nests().map(Nest::bytes).sum()
    }

    /// Returns one side of the program: between its memory and a dense stream of the program's bytes, in order.
    ///
    /// The program must be checked, so that its sizes fit into 64 bits.
    pub fn stream(&self, side: Side) -> StreamProgram {
        let mut end = 0;
        let placed = self.placed.iter().map(|placed| {
            let start = end;
            end += self.nests[placed.nest as usize].bytes();
            let src = match side {
                Side::Source => placed.src,
                Side::Destination => placed.dst,
            };
            Placed { nest: placed.nest, src, dst: start }
        });
        let placed = placed.collect();
        let nests = self.nests.iter().map(|nest| nest.dense(side)).collect();
        StreamProgram::made_dense(Self { nests, placed }, end)
    }

    /// Calls `chunk` with source address, destination address and length of every chunk, in order.
    pub fn for_each_chunk(&self, mut chunk: impl FnMut(u64, u64, u64)) {
        for placed in &self.placed {
            let nest = &self.nests[placed.nest as usize];
            expand(&nest.loops, nest.run, placed.src, placed.dst, &mut chunk);
        }
    }

    /// Returns the number of chunks that the program moves.
    pub fn chunks(&self) -> u64 {
        self.placed_nests().map(Nest::chunks).sum()
    }

    fn placed_nests(&self) -> impl Iterator<Item = &Nest> {
        let placed = self.placed.iter();
        placed.map(|place| &self.nests[place.nest as usize])
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
/// The stream is dense: the first place starts at stream offset 0, and each next one where the previous ended. Inside a
/// nest the stream strides are the products of the inner extents. A gather runs it from memory to stream, a scatter
/// from stream to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamProgram {
    program: Program,
    bytes: u64,
}

/// The error for a program whose second side is not a dense stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "place {place} is no dense part of a stream that has {end} bytes before it: places follow one \
     another, loops have the strides of their order, and nothing is empty"
)]
#[non_exhaustive]
pub struct NotDense {
    /// The index in [`Program::placed`] of the first place that is not dense.
    pub place: usize,
    /// The bytes of the stream before it.
    pub end: u64,
}

impl StreamProgram {
    /// Wraps a program whose `dst` side is dense as described above. Costs O(places).
    ///
    /// # Errors
    /// [`NotDense`] names the first place that is not dense or whose nest does not exist.
    pub fn new(program: Program) -> Result<Self, NotDense> {
        let mut end = 0;
        for (place, placed) in program.placed.iter().enumerate() {
            let nest = program.nests.get(placed.nest as usize);
            let bytes = nest.and_then(dense_bytes).filter(|_| placed.dst == end);
            let next = bytes.and_then(|bytes| bytes.checked_add(end));
            end = next.ok_or(NotDense { place, end })?;
        }
        Ok(Self { program, bytes: end })
    }

    /// Wraps a program that is known to be dense, with `bytes` bytes.
    pub(crate) fn made_dense(program: Program, bytes: u64) -> Self {
        let made = Self { program, bytes };
        debug_assert_eq!(Self::new(made.program.clone()).as_ref(), Ok(&made));
        made
    }

    /// Returns the program, with the memory as `src` and the stream as `dst`.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the length of the stream in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn dense_bytes(nest: &Nest) -> Option<u64> {
    let mut dense = nest.run;
    for l in nest.loops.iter().rev() {
        if l.dst != dense {
            return None;
        }
        dense = dense.checked_mul(l.count)?;
    }
    (dense > 0).then_some(dense)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(loops: &[(u64, u64)], run: u64, places: &[(u32, u64)]) -> Result<u64, NotDense> {
        let loops = loops.iter().map(|&(count, dst)| Loop { count, src: 0, dst });
        let placed = places.iter().map(|&(nest, dst)| Placed { nest, src: 0, dst });
        let program = Program { nests: vec![Nest { loops: loops.collect(), run }], placed: placed.collect() };
        StreamProgram::new(program).map(|stream| stream.bytes())
    }

    #[test]
    fn only_dense_streams_are_wrapped() {
        let not = |place, end| Err(NotDense { place, end });
        assert_eq!(wrap(&[(3, 20), (2, 10)], 10, &[(0, 0), (0, 60)]), Ok(120));
        assert_eq!(wrap(&[], 10, &[(0, 0), (0, 5)]), not(1, 10));
        assert_eq!(wrap(&[], 10, &[(0, 1)]), not(0, 0));
        assert_eq!(wrap(&[], 10, &[(0, 0), (1, 10)]), not(1, 10));
        assert_eq!(wrap(&[(2, 11)], 10, &[(0, 0)]), not(0, 0));
        assert_eq!(wrap(&[(0, 10)], 10, &[(0, 0)]), not(0, 0));
        assert_eq!(wrap(&[], 0, &[(0, 0)]), not(0, 0));
        assert_eq!(wrap(&[(u64::MAX, 10)], 10, &[(0, 0)]), not(0, 0));
        assert_eq!(wrap(&[], 1, &[]), Ok(0));
    }
}
