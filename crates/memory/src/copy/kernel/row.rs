//! The rows of chunks that kernels copy, and the kind of traffic that they are part of.

use std::ptr;

/// Chunks of one length, at equal distances at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    /// Bytes from one chunk to the next.
    pub(crate) src_stride: usize,
    pub(crate) dst_stride: usize,
    /// Bytes of a chunk; never 0.
    pub(crate) run: usize,
    /// The number of chunks; never 0.
    pub(crate) count: usize,
}

impl Row {
    #[inline(always)]
    pub(super) fn each(&self, mut chunk: impl FnMut(*const u8, *mut u8)) {
        let (mut src, mut dst) = (self.src, self.dst);
        for _ in 0..self.count {
            chunk(src, dst);
            src = src.wrapping_add(self.src_stride);
            dst = dst.wrapping_add(self.dst_stride);
        }
    }

    /// # Safety
    /// The chunks can be read at the source and written at the destination.
    pub(super) unsafe fn copy(&self) {
        if self.src_stride == self.run && self.dst_stride == self.run {
            // SAFETY: the caller vouches for all chunks, here and below.
            unsafe { ptr::copy(self.src, self.dst, self.run * self.count) };
        } else {
            // SAFETY: as above.
            self.each(|src, dst| unsafe { ptr::copy(src, dst, self.run) });
        }
    }
}

/// The source and the use of moved bytes, which decides how the caches are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Copies from memory to memory, neither of which is used again soon: prefetch, and store around the caches.
    Through,
    /// Copies from memory into a buffer that is used at once: prefetch, and store into the caches.
    Fetch,
    /// Copies from a recently filled buffer into memory: store around the caches.
    Place,
    /// Few enough bytes that both ends are probably in the caches, and should stay there.
    Near,
}

/// A kernel: it moves the first `count` of `rows`, in program order; the others only show what comes next. It takes the
/// state of a CRC-32C, and returns it with the bytes added if it is a summing kernel.
///
/// # Safety
/// `count <= rows.len()`. Every chunk of the first `count` rows can be read at its source and written at its
/// destination, which do not overlap unless this is [`Kernel::Portable`](super::Kernel::Portable). No other byte is accessed (prefetching an
/// address never faults). The machine has the features that [`Kernel::available`](super::Kernel::available) requires.
pub(crate) type Move = unsafe fn(rows: &[Row], count: usize, sum: u32) -> u32;
