//! What moves bytes: kernels over short lists of rows.
//!
//! A walk over a program lists the next few dozen [`Row`]s, and a kernel moves them. So a kernel
//! knows nothing of layouts, nests or blocks: it sees chunks at even distances, their length and
//! alignment, and what comes after them, across the end of every loop.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use super::checksum;

#[cfg(target_arch = "x86_64")]
mod x86;

/// Chunks of one length, at even distances at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The first byte of the first chunk, at either end.
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    /// Bytes from one chunk to the next, at either end.
    pub(crate) src_stride: usize,
    pub(crate) dst_stride: usize,
    /// Bytes of a chunk; never 0.
    pub(crate) run: usize,
    /// How many chunks; never 0.
    pub(crate) count: usize,
}

impl Row {
    /// Calls `chunk` with both ends of each chunk.
    #[inline(always)]
    fn each(&self, mut chunk: impl FnMut(*const u8, *mut u8)) {
        let (mut src, mut dst) = (self.src, self.dst);
        for _ in 0..self.count {
            chunk(src, dst);
            src = src.wrapping_add(self.src_stride);
            dst = dst.wrapping_add(self.dst_stride);
        }
    }

    /// Moves its chunks; at once, if they follow one another at both ends.
    ///
    /// # Safety
    /// They can be read at the source and written at the destination.
    unsafe fn copy(&self) {
        if self.src_stride == self.run && self.dst_stride == self.run {
            // SAFETY: the caller vouches for all chunks, here and below.
            unsafe { ptr::copy(self.src, self.dst, self.run * self.count) };
        } else {
            // SAFETY: as above.
            self.each(|src, dst| unsafe { ptr::copy(src, dst, self.run) });
        }
    }
}

/// Moves the first `count` of `rows`, in program order; the rest only say what comes next. Takes
/// the state of a CRC-32C and returns it with the bytes added, if it is one that sums.
///
/// # Safety
/// `count <= rows.len()`. Every chunk of the first `count` rows can be read at its source and
/// written at its destination, which do not overlap unless this is [`Kernel::Portable`]. No other
/// byte is touched (prefetching an address never faults). The machine has what [`Kernel::available`]
/// asks of it.
pub(crate) type Move = unsafe fn(rows: &[Row], count: usize, sum: u32) -> u32;

/// The instructions that copies are made with.
///
/// Chosen by what the machine has. Public for tests and benches only.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// `memmove`, whatever it is here; the only one on other machines than x86-64.
    Portable,
    /// The baseline of x86-64: prefetch and non-temporal stores of 16 bytes. Sums as `Portable` does.
    Sse2,
    /// Stores of 32 bytes, and sums by the `crc32` instruction.
    Avx2,
    /// Stores of whole lines, and sums by carry-less multiplication of whole lines.
    Avx512,
}

impl Kernel {
    /// The best one for this machine.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Portable)
    }

    /// All that run on this machine, the best one last.
    pub fn available() -> &'static [Self] {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            const ALL: &[Kernel] = &[Kernel::Portable, Kernel::Sse2, Kernel::Avx2, Kernel::Avx512];
            // The steps are those of real machines: each newer one has all of the older ones'.
            let sums = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
            let avx2 = sums && is_x86_feature_detected!("avx2");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
            &ALL[..2 + usize::from(avx2) + usize::from(avx512)]
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        &[Kernel::Portable]
    }

    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Where bytes come from and what becomes of them: this decides how the caches are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// From memory to memory, neither used again soon: prefetch, store around the caches.
    Through,
    /// From memory into a buffer that is used at once: prefetch, store into the caches.
    Fetch,
    /// From a buffer that was just filled into memory: store around the caches.
    Place,
    /// So little that both ends may well be in the caches, and stay there.
    Near,
}

/// From this many bytes on, stores go around the caches.
///
/// Even where source and destination are in the caches from the last time, going around them is
/// faster from 2 MiB on (13.6 GB/s, through them 10.2; at 1 MiB 16 and 13 in chunks of 512 B, 19
/// and 21 of 8 KiB; at 512 KiB 20 and 34), and what a transfer writes was seldom there before. It
/// costs whoever reads the destination next on this CPU up to a third of the speed until 8 MiB.
const AROUND_FROM: u64 = 1 << 20;

/// With which kernel bytes are moved, and from how many on around the caches.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    pub(crate) kernel: Kernel,
    pub(crate) around_from: u64,
}

impl Tuning {
    /// The best for this machine.
    pub(crate) fn detect() -> Self {
        Self { kernel: Kernel::detect(), around_from: AROUND_FROM }
    }

    /// Takes another kernel, if this machine has it.
    #[cfg(test)]
    pub(crate) fn set_kernel(&mut self, kernel: Kernel) {
        if Kernel::available().contains(&kernel) {
            self.kernel = kernel;
        }
    }

    /// What moves such traffic, `total` bytes in all.
    pub(crate) fn mover(self, traffic: Traffic, total: u64, sum: bool) -> Mover {
        let kernel = match self.kernel {
            Kernel::Sse2 if sum => Kernel::Portable,
            kernel => kernel,
        };
        let traffic = match traffic {
            Traffic::Through | Traffic::Place if total < self.around_from => Traffic::Near,
            traffic => traffic,
        };
        Mover {
            function: function(kernel, traffic, sum),
            looks_ahead: kernel != Kernel::Portable && matches!(traffic, Traffic::Through | Traffic::Fetch),
        }
    }
}

/// A kernel, chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mover {
    pub(crate) function: Move,
    /// Whether it makes use of the rows beyond those that it moves.
    pub(crate) looks_ahead: bool,
}

#[cfg(target_arch = "x86_64")]
fn function(kernel: Kernel, traffic: Traffic, sum: bool) -> Move {
    match (kernel, sum) {
        (Kernel::Portable, false) => portable,
        (Kernel::Portable, true) => portable_summing,
        (Kernel::Sse2, _) => x86::sse2(traffic),
        (Kernel::Avx2, false) => x86::avx2(traffic),
        (Kernel::Avx2, true) => x86::avx2_summing(traffic),
        (Kernel::Avx512, false) => x86::avx512(traffic),
        (Kernel::Avx512, true) => x86::avx512_summing(traffic),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn function(_: Kernel, _: Traffic, sum: bool) -> Move {
    if sum { portable_summing } else { portable }
}

/// Moves chunks as the compiler likes; right also where the two ends of one overlap.
unsafe fn portable(rows: &[Row], count: usize, sum: u32) -> u32 {
    for row in &rows[..count] {
        // SAFETY: the caller vouches for both ends of every chunk.
        unsafe { row.copy() };
    }
    sum
}

/// Bytes that are summed at a time, where the kernel cannot sum; with 4 KiB long runs take 20 % more time, with 32 KiB
/// scatters do.
const STEP: usize = 16 << 10;

/// Moves chunks by way of a buffer that is summed, so that the sum is of what was stored, whoever else writes.
unsafe fn portable_summing(rows: &[Row], count: usize, mut sum: u32) -> u32 {
    let mut buffer = [MaybeUninit::<u8>::uninit(); STEP];
    let buffer = buffer.as_mut_ptr().cast::<u8>();
    let mut filled = 0;
    // SAFETY: called when so many bytes have been copied into the buffer.
    let add = |sum, filled| checksum::add(sum, unsafe { slice::from_raw_parts(buffer, filled) });
    for row in &rows[..count] {
        let (mut done, mut at) = (0, 0);
        while done < row.count {
            // As many chunks as there is room for, or a part of one.
            let room = STEP - filled;
            let run = (row.run - at).min(room);
            let whole = run == row.run;
            let part = Row {
                src: row.src.wrapping_add(done * row.src_stride + at),
                dst: row.dst.wrapping_add(done * row.dst_stride + at),
                run,
                count: if whole { (room / run).min(row.count - done) } else { 1 },
                ..*row
            };
            let (src, src_stride) = (buffer.wrapping_add(filled), run);
            let (dst, dst_stride) = (src, src_stride);
            // SAFETY: the caller vouches for both ends of every chunk, and the buffer has room for the part.
            unsafe {
                Row { dst, dst_stride, ..part }.copy();
                Row { src, src_stride, ..part }.copy();
            }
            filled += part.count * run;
            at += run;
            if at == row.run {
                (done, at) = (done + part.count, 0);
            }
            if filled == STEP {
                (sum, filled) = (add(sum, filled), 0);
            }
        }
    }
    add(sum, filled)
}

/// Makes what this thread has scattered visible to others before anything that it does next.
///
/// A scatter may store around the caches, and on x86-64 such stores are not ordered with later ones.
/// So this comes before another thread, process or device is told that the bytes have arrived;
/// [`copy`](super::copy) does it by itself. (Handing work to another thread through a lock or an
/// atomic exchange has the same effect there, so a task that moves between threads needs no more.)
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    x86::settle();
}
