//! Gather and scatter, from wherever the one before left off.

use std::mem::MaybeUninit;

use super::checksum::Checksum;
use super::ends::{Dense, Source};
use super::kernel::{Mover, Traffic};
use super::runs::{Run, Runs};
use super::stream::{MemoryStream, StreamError};
use super::walk::Walk;
use crate::memory::Access;

/// A position in a [`MemoryStream`], for bytes that come or go one piece after the other.
///
/// The pieces may be cut anywhere; where one ends, the next goes on without a search. Each call adds
/// the bytes that pass to a sum, or to [`NoChecksum`](super::NoChecksum), which is not even looked
/// at. A call that fails has done nothing.
#[derive(Clone, Debug)]
pub struct Cursor {
    stream: MemoryStream,
    walk: Walk,
}

/// Bytes that pass through a buffer at a time, where the kernel cannot sum.
const STEP: usize = 4096;

impl Cursor {
    pub(super) fn new(stream: MemoryStream, walk: Walk) -> Self {
        Self { stream, walk }
    }

    /// The stream that it is in.
    pub fn stream(&self) -> &MemoryStream {
        &self.stream
    }

    /// The position of the next byte.
    pub fn position(&self) -> u64 {
        self.walk.position()
    }

    /// How many bytes are left behind it.
    pub fn remaining(&self) -> u64 {
        self.stream.bytes() - self.position()
    }

    /// Goes to another position. Costs O(log places + loops).
    ///
    /// # Errors
    /// [`StreamError::PastEnd`].
    pub fn seek(&mut self, position: u64) -> Result<(), StreamError> {
        self.walk = self.stream.walk(position)?;
        Ok(())
    }

    /// Fills `out` with the next bytes of the stream.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there are not so many left.
    pub fn gather(&mut self, out: &mut [u8], sum: &mut impl Checksum) -> Result<(), StreamError> {
        // SAFETY: a slice is valid, and nobody else's.
        unsafe { self.gather_raw(out.as_mut_ptr(), out.len(), sum) }
    }

    /// The same for a buffer that holds nothing yet, such as the spare capacity of a `Vec`; returns
    /// it filled.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there are not so many left.
    pub fn gather_uninit<'b>(
        &mut self,
        out: &'b mut [MaybeUninit<u8>],
        sum: &mut impl Checksum,
    ) -> Result<&'b mut [u8], StreamError> {
        // SAFETY: a slice is valid, and nobody else's; afterwards all of it is written.
        unsafe {
            self.gather_raw(out.as_mut_ptr().cast(), out.len(), sum)?;
            Ok(&mut *(std::ptr::from_mut(out) as *mut [u8]))
        }
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
    pub unsafe fn gather_raw(
        &mut self,
        out: *mut u8,
        len: usize,
        sum: &mut impl Checksum,
    ) -> Result<(), StreamError> {
        let end = self.stream.end_of(self.position(), len as u64)?;
        match sum.crc32c() {
            // SAFETY: `out` is valid up to `end`.
            None => drop(unsafe { self.fetch(out, end, None) }),
            Some(sum) if self.stream.kernel.sums() => {
                // SAFETY: as above.
                sum.pass(len as u64, |state| unsafe {
                    self.fetch(out, end, Some(state))
                });
            }
            Some(sum) => {
                let mut buffer = [0; STEP];
                let mut at = 0;
                while at < len {
                    let step = (len - at).min(STEP);
                    let until = self.position() + step as u64;
                    // SAFETY: the buffer has room for a step, `out` for all of them.
                    unsafe {
                        self.fetch(buffer.as_mut_ptr(), until, None);
                        std::ptr::copy_nonoverlapping(buffer.as_ptr(), out.add(at), step);
                    }
                    sum.update(&buffer[..step]);
                    at += step;
                }
            }
        }
        Ok(())
    }

    /// Puts `bytes`, the next ones of the stream, where they belong in memory.
    ///
    /// They may be on their way there still: call [`settle`](super::settle) on this thread before
    /// another one, or a device, is told that they have arrived.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there is no room for so many, and [`StreamError::ReadOnly`].
    pub fn scatter(&mut self, bytes: &[u8], sum: &mut impl Checksum) -> Result<(), StreamError> {
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
        sum: &mut impl Checksum,
    ) -> Result<(), StreamError> {
        if self.stream.memory.access() == Access::Read {
            return Err(StreamError::ReadOnly);
        }
        let end = self.stream.end_of(self.position(), len as u64)?;
        match sum.crc32c() {
            // SAFETY: `bytes` is valid up to `end`, and the memory may be written.
            None => drop(unsafe { self.place(bytes, end, None) }),
            Some(sum) if self.stream.kernel.sums() => {
                // SAFETY: as above.
                sum.pass(len as u64, |state| unsafe {
                    self.place(bytes, end, Some(state))
                });
            }
            Some(sum) => {
                let mut buffer = [0; STEP];
                let mut at = 0;
                while at < len {
                    let step = (len - at).min(STEP);
                    let until = self.position() + step as u64;
                    // SAFETY: `bytes` has all of the steps, the buffer one.
                    unsafe {
                        std::ptr::copy_nonoverlapping(bytes.add(at), buffer.as_mut_ptr(), step);
                        self.place(buffer.as_ptr(), until, None);
                    }
                    sum.update(&buffer[..step]);
                    at += step;
                }
            }
        }
        Ok(())
    }

    /// The longest run of memory that the next bytes of the stream lie in together; `None` at the
    /// end. A long one may be better lent ([`Memory::lend`](crate::memory::Memory::lend)) than
    /// gathered.
    pub fn run(&self) -> Option<Run> {
        let end = self.stream.bytes();
        Runs::new(&self.stream.program, self.walk.clone(), end).next()
    }

    /// Goes over the next bytes, which were moved in some other way. Costs O(chunks) skipped; for
    /// many of them, [`seek`](Self::seek) is faster.
    ///
    /// # Errors
    /// [`StreamError::PastEnd`], if there are not so many left.
    pub fn skip(&mut self, bytes: u64) -> Result<(), StreamError> {
        let end = self.stream.end_of(self.position(), bytes)?;
        let program = self.stream.program.program();
        while let (true, Some((_, left))) = (self.position() < end, self.walk.chunk(program)) {
            self.walk.skip(program, left.min(end - self.position()));
        }
        Ok(())
    }

    /// Moves what is up to `end` to `out`, and adds it to the state of a sum if there is one.
    ///
    /// # Safety
    /// As for [`gather_raw`](Self::gather_raw), and the stream is not shorter than `end`. A kernel
    /// that gets a state can sum.
    unsafe fn fetch(&mut self, out: *mut u8, end: u64, state: Option<u32>) -> u32 {
        let Self { stream, walk } = self;
        let mover = Mover::new(stream.kernel, Traffic::Fetch, state.is_some());
        let buffer = Dense {
            start: out,
            position: walk.position(),
        };
        let ends = (&Source(&stream.memory), &buffer);
        // SAFETY: the memory was checked when the stream was made; the rest is the caller's.
        unsafe { stream.run(walk, ends, end, mover, state.unwrap_or(0)) }
    }

    /// Moves `bytes` to what is up to `end`, and adds them to the state of a sum if there is one.
    ///
    /// # Safety
    /// As for [`scatter_raw`](Self::scatter_raw), the memory may be written, and the stream is not
    /// shorter than `end`. A kernel that gets a state can sum.
    unsafe fn place(&mut self, bytes: *const u8, end: u64, state: Option<u32>) -> u32 {
        let Self { stream, walk } = self;
        let traffic = Traffic::place(stream.bytes(), stream.around_from);
        let mover = Mover::new(stream.kernel, traffic, state.is_some());
        let buffer = Dense {
            start: bytes.cast_mut(),
            position: walk.position(),
        };
        let ends = (&buffer, &Source(&stream.memory));
        // SAFETY: as in `fetch`; nothing is written to the buffer.
        unsafe { stream.run(walk, ends, end, mover, state.unwrap_or(0)) }
    }
}
