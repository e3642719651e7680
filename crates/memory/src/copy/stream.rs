//! A memory as a stream of bytes, which can be gathered and scattered piece by piece.

use std::sync::Arc;

use thiserror::Error;

use super::checksum::Crc32c;
#[cfg(test)]
use super::kernel::Kernel;
use super::kernel::{Traffic, Tuning};
use super::walk::{Dense, Walk};
use crate::{Access, CheckError, Memory, Side};
use transload_plan::program::StreamProgram;

/// The bytes of a memory in the order of a [`StreamProgram`], as one peer sends them to another.
///
/// It is cheap to clone and to share. Positions are offsets in the stream, in bytes. Any number of [`Cursor`]s may work
/// on one stream at a time, for example one per lane.
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

/// The reason why bytes could not be moved to or from a stream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum StreamError {
    /// The range reaches beyond the stream's end.
    #[error("{len} bytes at offset {offset} of a stream of {bytes} bytes")]
    PastEnd { offset: u64, len: u64, bytes: u64 },
    /// The memory of a scatter is read-only.
    #[error("the memory is read-only")]
    ReadOnly,
}

impl MemoryStream {
    /// Lays a program over a memory, for any number of copies.
    ///
    /// # Errors
    /// [`CheckError`] if the program needs bytes that the memory does not have.
    pub fn new(program: impl Into<Arc<StreamProgram>>, memory: Memory) -> Result<Self, CheckError> {
        let program = program.into();
        memory.check(program.program(), Side::Source)?;
        Ok(Self { program, memory, tuning: Tuning::detect() })
    }

    #[cfg(test)]
    #[must_use]
    pub(super) fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.tuning.set_kernel(kernel);
        self
    }

    /// Returns the length of the stream in bytes.
    pub fn bytes(&self) -> u64 {
        self.program.bytes()
    }

    /// Makes a cursor before the byte at `position`, or at the end. It takes O(log places + loops).
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

    fn end_of(&self, offset: u64, len: u64) -> Result<u64, StreamError> {
        let bytes = self.bytes();
        let end = offset.checked_add(len).filter(|end| *end <= bytes);
        end.ok_or(StreamError::PastEnd { offset, len, bytes })
    }
}

/// A position in a [`MemoryStream`], for bytes that are moved piece by piece.
///
/// Pieces may be cut anywhere, and the next one continues where the last one ended, without a search. Each call adds
/// the moved bytes to a sum, if it gets one. A call that fails has no effect.
#[derive(Clone, Debug)]
pub struct Cursor {
    stream: MemoryStream,
    walk: Walk,
}

impl Cursor {
    /// Returns the position of the next byte.
    pub fn position(&self) -> u64 {
        self.walk.position
    }

    /// Returns the number of bytes that are left.
    pub fn remaining(&self) -> u64 {
        self.stream.bytes() - self.position()
    }

    /// Fills `out` with the next bytes of the stream.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`] if fewer bytes are left.
    pub fn gather(&mut self, out: &mut [u8], sum: Option<&mut Crc32c>) -> Result<(), StreamError> {
        // SAFETY: an exclusive slice is valid for writes.
        unsafe { self.gather_raw(out.as_mut_ptr(), out.len(), sum) }
    }

    /// Gathers as [`gather`](Self::gather) does, into a buffer that others may access at any time, such as memory
    /// shared with another process.
    ///
    /// # Safety
    /// `len` bytes can be written at `out`. They belong to neither the stream's memory nor any Rust reference, and no
    /// other thread of this process accesses them meanwhile.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`] if fewer bytes are left.
    pub unsafe fn gather_raw(&mut self, out: *mut u8, len: usize, sum: Option<&mut Crc32c>) -> Result<(), StreamError> {
        // SAFETY: `out` may be written.
        unsafe { self.pass::<false>(out, len, sum) }
    }

    /// Scatters `bytes`, the next ones of the stream, to their places in memory.
    ///
    /// The stores may not be visible yet: call [`settle`](super::settle) on this thread before another thread or a
    /// device is told that the bytes have arrived.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`] if fewer bytes are left, and [`StreamError::ReadOnly`].
    pub fn scatter(&mut self, bytes: &[u8], sum: Option<&mut Crc32c>) -> Result<(), StreamError> {
        // SAFETY: a slice is valid.
        unsafe { self.scatter_raw(bytes.as_ptr(), bytes.len(), sum) }
    }

    /// Scatters as [`scatter`](Self::scatter) does, from a buffer that others may write to at any time, such as memory
    /// shared with another process. If they do, the sum and the scattered bytes may differ.
    ///
    /// # Safety
    /// `len` bytes can be read at `bytes`. They belong to neither the stream's memory nor an exclusive Rust reference,
    /// and no other thread of this process writes to them meanwhile.
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

    /// # Safety
    /// As for [`gather_raw`](Self::gather_raw) or [`scatter_raw`](Self::scatter_raw). The one of buffer and memory that
    /// is written may be written.
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
        // SAFETY: the memory was checked when the stream was made, and the buffer has `len` bytes; the rest is the
        // caller's.
        unsafe { walk.run::<Dense, SCATTER>(program, ends, bounds, how, sum) };
        Ok(())
    }
}
