//! The two ends of a walk: where the chunks of a program are, as pointers.

use crate::memory::Memory;
use crate::plan::program::{Loop, split_address};

/// Chunks of a row, at both sides of the program.
pub(crate) struct Chunks {
    /// Addresses of the first one.
    pub(crate) src: u64,
    pub(crate) dst: u64,
    /// How many there are, and how far it is from one to the next.
    pub(crate) row: Loop,
    /// How many bytes of the program come before the first one.
    pub(crate) position: u64,
    /// Bytes of each.
    pub(crate) run: u64,
}

/// Where chunks of a row are at one end.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    /// The first byte of the first one.
    pub(crate) first: *mut u8,
    /// Bytes from one to the next.
    pub(crate) stride: usize,
    /// For how many of them that holds; at least 1.
    pub(crate) count: u64,
}

/// One end of a walk.
pub(crate) trait End {
    /// Where these chunks are, or the first of them.
    ///
    /// # Safety
    /// The memory, if this is one, was found to have all of them.
    unsafe fn find(&self, chunks: &Chunks) -> Ending;
}

/// The memory that a program's source addresses are in.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(pub(crate) &'a Memory);

/// The memory that a program's destination addresses are in.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a>(pub(crate) &'a Memory);

/// A buffer that holds the bytes of a program without gaps, from a position on.
#[derive(Clone, Copy)]
pub(crate) struct Dense {
    /// The buffer's first byte.
    pub(crate) start: *mut u8,
    /// How many bytes of the program come before it.
    pub(crate) position: u64,
}

impl End for Source<'_> {
    #[inline(always)]
    unsafe fn find(&self, chunks: &Chunks) -> Ending {
        // SAFETY: the caller vouches for the chunks.
        unsafe { find_in(self.0, chunks.src, chunks.row.src, chunks.row.count) }
    }
}

impl End for Destination<'_> {
    #[inline(always)]
    unsafe fn find(&self, chunks: &Chunks) -> Ending {
        // SAFETY: the caller vouches for the chunks.
        unsafe { find_in(self.0, chunks.dst, chunks.row.dst, chunks.row.count) }
    }
}

#[inline(always)]
unsafe fn find_in(memory: &Memory, address: u64, stride: u64, count: u64) -> Ending {
    // A stride that leads into another allocation is left for the next row.
    let last = address + stride * (count - 1);
    let same = split_address(address).0 == split_address(last).0;
    Ending {
        // SAFETY: the caller vouches for the first chunk.
        first: unsafe { memory.pointer(address) },
        stride: stride as usize,
        count: if same { count } else { 1 },
    }
}

impl End for Dense {
    #[inline(always)]
    unsafe fn find(&self, chunks: &Chunks) -> Ending {
        let offset = chunks.position - self.position;
        Ending {
            // Wrapping, since a walk that looks ahead goes beyond the buffer's end.
            first: self.start.wrapping_add(offset as usize),
            stride: chunks.run as usize,
            count: chunks.row.count,
        }
    }
}
