//! A memory as a stream of bytes.

use std::sync::Arc;

use thiserror::Error;

use super::cursor::Cursor;
use super::ends::End;
use super::kernel::{Mover, Tuning};
use super::walk::{self, Walk};
use crate::memory::{CheckError, Memory, Side};
use crate::plan::program::StreamProgram;

/// The bytes of a memory in the order of a [`StreamProgram`]: what one peer sends to, or receives
/// from, another.
///
/// Cheap to clone and to share. Positions are offsets in the stream, in bytes. Any number of
/// [`Cursor`]s may work on one stream at a time, for instance one per lane.
///
/// ```
/// # use smallvec::smallvec;
/// use transload_transfer::copy::{Crc32c, MemoryStream, NoChecksum, settle};
/// use transload_transfer::memory::Memory;
/// # use transload_transfer::plan::program::{Loop, Nest, Placed, Program, StreamProgram};
/// # // Four chunks of 8 bytes, 16 bytes apart.
/// # let loops = smallvec![Loop { count: 4, src: 16, dst: 8 }];
/// # let program = StreamProgram::new(Program {
/// #     nests: vec![Nest { loops, run: 8 }],
/// #     placed: vec![Placed { nest: 0, src: 0, dst: 0 }],
/// # })?;
///
/// let memory = Memory::allocate(&[64])?;
/// let stream = MemoryStream::new(program, memory)?;
///
/// // Bytes arrive in pieces of any size, and are put where they belong.
/// let (mut cursor, mut received) = (stream.cursor(0)?, Crc32c::new());
/// for piece in [&b"every by"[..], b"te in its p", b"lace ......."] {
///     cursor.scatter(piece, &mut received)?;
/// }
/// settle();
/// assert_eq!(received, Crc32c::of(b"every byte in its place ......."));
///
/// // Read back from any position on.
/// let mut bytes = [0; 9];
/// stream.cursor(14)?.gather(&mut bytes, &mut NoChecksum)?;
/// assert_eq!(&bytes, b"its place");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStream {
    pub(super) program: Arc<StreamProgram>,
    pub(super) memory: Memory,
    pub(super) tuning: Tuning,
}

/// Why bytes could not be moved to or from a stream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// Bytes beyond the stream's end.
    #[error("{len} bytes at offset {offset} of a stream of {bytes} bytes")]
    PastEnd {
        /// Offset of the first byte in the stream.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Length of the stream in bytes.
        bytes: u64,
    },
    /// A scatter into a memory that may only be read.
    #[error("the memory may only be read")]
    ReadOnly,
}

impl MemoryStream {
    /// Lays a program over a memory, once for any number of copies.
    ///
    /// # Errors
    /// [`CheckError`], if the program needs bytes that the memory does not have.
    pub fn new(program: impl Into<Arc<StreamProgram>>, memory: Memory) -> Result<Self, CheckError> {
        let program = program.into();
        memory.check(program.program(), Side::Source)?;
        Ok(Self {
            program,
            memory,
            tuning: Tuning::detect(),
        })
    }

    /// Moves bytes otherwise than is best; for tests and benches.
    #[doc(hidden)]
    #[must_use]
    pub fn with_tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Length of the stream in bytes.
    pub fn bytes(&self) -> u64 {
        self.program.bytes()
    }

    /// The memory that the bytes are in.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// A cursor before the byte at `position`, or at the end. Costs O(log places + loops).
    ///
    /// # Errors
    /// [`StreamError::PastEnd`].
    pub fn cursor(&self, position: u64) -> Result<Cursor, StreamError> {
        Ok(Cursor::new(self.clone(), self.walk(position)?))
    }

    /// The position `len` bytes behind `position`.
    pub(super) fn end_of(&self, position: u64, len: u64) -> Result<u64, StreamError> {
        let bytes = self.bytes();
        let end = position.checked_add(len).filter(|end| *end <= bytes);
        end.ok_or(StreamError::PastEnd {
            offset: position,
            len,
            bytes,
        })
    }

    pub(super) fn walk(&self, position: u64) -> Result<Walk, StreamError> {
        self.end_of(position, 0)?;
        let program = self.program.program();
        if position == self.bytes() {
            return Ok(Walk::new(program, program.placed.len(), position, 0));
        }
        let behind = program.placed.partition_point(|p| p.dst <= position);
        let place = behind.saturating_sub(1);
        let start = program.placed.get(place).map_or(0, |p| p.dst);
        Ok(Walk::new(program, place, start, position - start))
    }

    /// Moves bytes of the stream from one end to the other; see [`walk::run`].
    ///
    /// # Safety
    /// One end is this memory, the other has room for what is from the walk up to `end`, which is
    /// not beyond the stream's; they can be read and written as the case may be, and do not overlap.
    pub(super) unsafe fn run<F: End, T: End>(
        &self,
        walk: &mut Walk,
        ends: (&F, &T),
        end: u64,
        mover: Mover,
        sum: u32,
    ) -> u32 {
        let bounds = (end, self.bytes());
        // SAFETY: the program was checked when the stream was made; the rest is the caller's.
        unsafe { walk::run(self.program.program(), walk, ends, bounds, mover, sum) }
    }
}
