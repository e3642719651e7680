//! A memory as a stream of bytes: gather and scatter, from wherever the one before left off.

use std::sync::Arc;

use thiserror::Error;

use super::checksum::Crc32c;
#[cfg(test)]
use super::kernel::Kernel;
use super::kernel::{Traffic, Tuning};
use super::walk::{Dense, Walk};
use crate::{Access, CheckError, Memory, Side};
use transload_plan::program::StreamProgram;

/// The bytes of a memory in the order of a [`StreamProgram`]: what one peer sends to, or receives
/// from, another.
///
/// Cheap to clone and to share. Positions are offsets in the stream, in bytes. Any number of
/// [`Cursor`]s may work on one stream at a time, for instance one per lane.
///
/// ```
/// # use smallvec::smallvec;
/// use transload_memory::Memory;
/// use transload_memory::copy::{Crc32c, MemoryStream};
/// use transload_memory::internal::settle;
/// # use transload_plan::program::{Loop, Nest, Placed, Program, StreamProgram};
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
///     cursor.scatter(piece, Some(&mut received))?;
/// }
/// settle();
/// assert_eq!(received, Crc32c::of(b"every byte in its place ......."));
///
/// // Read back from any position on.
/// let mut bytes = [0; 9];
/// stream.cursor(14)?.gather(&mut bytes, None)?;
/// assert_eq!(&bytes, b"its place");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStream {
    program: Arc<StreamProgram>,
    memory: Memory,
    pub(super) tuning: Tuning,
}

/// Why bytes could not be moved to or from a stream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum StreamError {
    /// Bytes beyond the stream's end.
    #[error("{len} bytes at offset {offset} of a stream of {bytes} bytes")]
    PastEnd { offset: u64, len: u64, bytes: u64 },
    /// A scatter into a memory that may only be read.
    #[error("the memory is read-only")]
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
        Ok(Self { program, memory, tuning: Tuning::detect() })
    }

    /// Takes another kernel than the best, if this machine has it; for tests.
    #[cfg(test)]
    #[must_use]
    pub(super) fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.tuning.set_kernel(kernel);
        self
    }

    /// Length of the stream in bytes.
    pub fn bytes(&self) -> u64 {
        self.program.bytes()
    }

    /// A cursor before the byte at `position`, or at the end. Costs O(log places + loops).
    ///
    /// # Errors
    /// [`StreamError::PastEnd`].
    pub fn cursor(&self, position: u64) -> Result<Cursor, StreamError> {
        self.end_of(position, 0)?;
        let program = self.program.program();
        let (place, start) = if position == self.bytes() {
            (program.placed.len(), position)
        } else {
            let behind = program.placed.partition_point(|p| p.dst <= position);
            let place = behind.saturating_sub(1);
            (place, program.placed.get(place).map_or(0, |p| p.dst))
        };
        let walk = Walk::new(program, place, start, position - start);
        let stream = self.clone();
        Ok(Cursor { stream, walk })
    }

    /// The position `len` bytes behind `offset`.
    fn end_of(&self, offset: u64, len: u64) -> Result<u64, StreamError> {
        let bytes = self.bytes();
        let end = offset.checked_add(len).filter(|end| *end <= bytes);
        end.ok_or(StreamError::PastEnd { offset, len, bytes })
    }
}

/// A position in a [`MemoryStream`], for bytes that come or go one piece after the other.
///
/// The pieces may be cut anywhere; where one ends, the next goes on without a search. Each call adds
/// the bytes that pass to a sum, if it is given one. A call that fails has done nothing.
#[derive(Clone, Debug)]
pub struct Cursor {
    stream: MemoryStream,
    walk: Walk,
}

impl Cursor {
    /// The position of the next byte.
    pub fn position(&self) -> u64 {
        self.walk.position
    }

    /// How many bytes are left behind it.
    pub fn remaining(&self) -> u64 {
        self.stream.bytes() - self.position()
    }

    /// Fills `out` with the next bytes of the stream.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there are not so many left.
    pub fn gather(&mut self, out: &mut [u8], sum: Option<&mut Crc32c>) -> Result<(), StreamError> {
        // SAFETY: a slice is valid, and nobody else's.
        unsafe { self.gather_raw(out.as_mut_ptr(), out.len(), sum) }
    }

    /// The same for a buffer that others may see at any time, such as memory shared with another
    /// process.
    ///
    /// # Safety
    /// `len` bytes can be written at `out`. They belong to neither the stream's memory nor any Rust
    /// reference, and no other thread of this process touches them meanwhile.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there are not so many left.
    pub unsafe fn gather_raw(&mut self, out: *mut u8, len: usize, sum: Option<&mut Crc32c>) -> Result<(), StreamError> {
        // SAFETY: `out` may be written.
        unsafe { self.pass::<false>(out, len, sum) }
    }

    /// Puts `bytes`, the next ones of the stream, where they belong in memory.
    ///
    /// They may be on their way there still: call [`settle`](super::settle) on this thread before
    /// another one, or a device, is told that they have arrived.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there is no room for so many, and [`StreamError::ReadOnly`].
    pub fn scatter(&mut self, bytes: &[u8], sum: Option<&mut Crc32c>) -> Result<(), StreamError> {
        // SAFETY: a slice is valid.
        unsafe { self.scatter_raw(bytes.as_ptr(), bytes.len(), sum) }
    }

    /// The same from a buffer that others may write to at any time, such as memory shared with
    /// another process. If they do, what was summed and what was put in place may differ.
    ///
    /// # Safety
    /// `len` bytes can be read at `bytes`. They do not belong to the stream's memory or to an
    /// exclusive Rust reference, and no other thread of this process writes to them meanwhile.
    ///
    /// # Errors
    /// As for [`scatter`](Self::scatter).
    pub unsafe fn scatter_raw(
        &mut self,
        bytes: *const u8,
        len: usize,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), StreamError> {
        if self.stream.memory.access() == Access::Read {
            return Err(StreamError::ReadOnly);
        }
        // SAFETY: `bytes` may be read, and nothing is written to them; the memory may be written.
        unsafe { self.pass::<true>(bytes.cast_mut(), len, sum) }
    }

    /// Moves the next `len` bytes between the memory and a buffer.
    ///
    /// # Safety
    /// As for [`gather_raw`](Self::gather_raw) or [`scatter_raw`](Self::scatter_raw): whichever of
    /// the two is written may be, be it the buffer or the memory.
    unsafe fn pass<const SCATTER: bool>(
        &mut self,
        buffer: *mut u8,
        len: usize,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), StreamError> {
        let Self { stream, walk } = self;
        let (program, position) = (stream.program.program(), walk.position);
        let bounds = (stream.end_of(position, len as u64)?, stream.bytes());
        let start = buffer;
        let ends = (&stream.memory, &Dense { start, position });
        let traffic = if SCATTER { Traffic::Place } else { Traffic::Fetch };
        let how = (stream.tuning, traffic);
        // SAFETY: the memory was checked when the stream was made, and the buffer has `len` bytes; the rest is the caller's.
        unsafe { walk.run::<Dense, SCATTER>(program, ends, bounds, how, sum) };
        Ok(())
    }
}
