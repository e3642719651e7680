//! Gather and scatter, from wherever the one before left off.

use std::mem::MaybeUninit;

use super::checksum::{Checksum, Crc32c};
use super::ends::{Dense, Source};
use super::kernel::{Mover, Traffic};
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

/// Which way bytes go. The walk is compiled for each of the two; this only chooses, once per piece.
#[derive(Clone, Copy)]
enum Way {
    /// From the memory to a buffer.
    Gather,
    /// From a buffer, to which nothing is written, to the memory.
    Scatter,
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
        // SAFETY: `out` may be written.
        unsafe { self.pass(Way::Gather, out, len, sum) }
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
        // SAFETY: `bytes` may be read, and nothing is written to them; the memory may be written.
        unsafe { self.pass(Way::Scatter, bytes.cast_mut(), len, sum) }
    }

    /// Moves the next `len` bytes between the memory and a buffer, and adds them to a sum.
    ///
    /// # Safety
    /// As for [`gather_raw`](Self::gather_raw) or [`scatter_raw`](Self::scatter_raw): whichever of
    /// the two is written may be, be it the buffer or the memory.
    unsafe fn pass(
        &mut self,
        way: Way,
        buffer: *mut u8,
        len: usize,
        sum: &mut impl Checksum,
    ) -> Result<(), StreamError> {
        let end = self.stream.end_of(self.position(), len as u64)?;
        match sum.crc32c() {
            // SAFETY: the buffer is valid up to `end`; the rest is the caller's.
            None => drop(unsafe { self.carry(way, buffer, end, None) }),
            Some(sum) if self.stream.tuning.kernel.sums() => {
                // SAFETY: as above.
                sum.pass(len as u64, |state| unsafe {
                    self.carry(way, buffer, end, Some(state))
                });
            }
            // SAFETY: as above.
            Some(sum) => unsafe { self.pass_in_steps(way, buffer, len, sum) },
        }
        Ok(())
    }

    /// The same by way of a buffer of our own, where the kernel cannot sum.
    ///
    /// # Safety
    /// As for [`pass`](Self::pass), and the stream has so many bytes left.
    unsafe fn pass_in_steps(&mut self, way: Way, buffer: *mut u8, len: usize, sum: &mut Crc32c) {
        let mut ours = [0; STEP];
        let mut at = 0;
        while at < len {
            let step = (len - at).min(STEP);
            let until = self.position() + step as u64;
            // SAFETY: our buffer has room for a step, the caller's has all of them.
            unsafe {
                let theirs = buffer.add(at);
                match way {
                    Way::Gather => {
                        self.carry(way, ours.as_mut_ptr(), until, None);
                        std::ptr::copy_nonoverlapping(ours.as_ptr(), theirs, step);
                    }
                    Way::Scatter => {
                        std::ptr::copy_nonoverlapping(theirs, ours.as_mut_ptr(), step);
                        self.carry(way, ours.as_mut_ptr(), until, None);
                    }
                }
            }
            sum.update(&ours[..step]);
            at += step;
        }
    }

    /// Moves what is up to `end`, and adds it to the state of a sum if there is one.
    ///
    /// # Safety
    /// As for [`pass`](Self::pass), and the stream is not shorter than `end`. A kernel that gets a
    /// state can sum.
    unsafe fn carry(&mut self, way: Way, buffer: *mut u8, end: u64, state: Option<u32>) -> u32 {
        let Self { stream, walk } = self;
        let traffic = match way {
            Way::Gather => Traffic::Fetch,
            Way::Scatter => Traffic::place(stream.bytes(), stream.tuning.around_from),
        };
        let mover = Mover::new(stream.tuning.kernel, traffic, state.is_some());
        let state = state.unwrap_or(0);
        let memory = Source(&stream.memory);
        let buffer = Dense {
            start: buffer,
            position: walk.position(),
        };
        // SAFETY: the memory was checked when the stream was made; the rest is the caller's.
        unsafe {
            match way {
                Way::Gather => stream.run(walk, (&memory, &buffer), end, mover, state),
                Way::Scatter => stream.run(walk, (&buffer, &memory), end, mover, state),
            }
        }
    }
}
