//! Kernels, which move bytes given as short lists of rows.
//!
//! A walk over a program lists the next few dozen [`Row`]s, and a kernel moves them. So a kernel does not know layouts,
//! nests or blocks: it sees chunks at equal distances, their length and alignment, and the chunks that follow, across
//! the end of every loop.

use std::mem::MaybeUninit;
use std::slice;

use self::row::Move;
pub(crate) use self::row::{Row, Traffic};
use super::checksum;

mod row;
#[cfg(target_arch = "x86_64")]
mod x86;

/// The kind of instructions that copy.
///
/// It is chosen by the features of the machine. Public for tests and benchmarks only.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// The platform's `memmove`. The only kernel outside of x86-64.
    Portable,
    /// The baseline of x86-64: prefetch, and non-temporal stores of 16 bytes. It sums like `Portable`.
    Sse2,
    /// Stores of 32 bytes, and sums with the `crc32` instruction.
    Avx2,
    /// Stores of whole cache lines, and sums with carry-less multiplication of whole lines.
    Avx512,
}

impl Kernel {
    /// Returns the best one for this machine.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Portable)
    }

    /// Returns all that run on this machine, the best one last.
    pub fn available() -> &'static [Self] {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            const ALL: &[Kernel] = &[Kernel::Portable, Kernel::Sse2, Kernel::Avx2, Kernel::Avx512];
            // The order is that of real machines: each newer one has all features of the older ones.
            let sums = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
            let avx2 = sums && is_x86_feature_detected!("avx2");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
            &ALL[..2 + usize::from(avx2) + usize::from(avx512)]
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        &[Kernel::Portable]
    }

    /// Returns its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// The total size from which stores go around the caches.
///
/// Even if source and destination are in the caches from before, storing around them is faster from 2 MiB on (13.6
/// GB/s, through them 10.2; at 1 MiB 16 and 13 in chunks of 512 B, 19 and 21 in chunks of 8 KiB; at 512 KiB 20 and 34),
/// and the destination of a transfer is seldom in the caches before. It makes the next reader of the destination on
/// this CPU up to a third slower, below 8 MiB.
const AROUND_FROM: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    pub(crate) kernel: Kernel,
    pub(crate) around_from: u64,
}

impl Tuning {
    pub(crate) fn detect() -> Self {
        Self { kernel: Kernel::detect(), around_from: AROUND_FROM }
    }

    /// Uses another kernel, if this machine has it.
    #[cfg(test)]
    pub(crate) fn set_kernel(&mut self, kernel: Kernel) {
        if Kernel::available().contains(&kernel) {
            self.kernel = kernel;
        }
    }

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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Mover {
    pub(crate) function: Move,
    /// Whether it uses the rows beyond those that it moves.
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

/// Moves chunks with plain copies. Correct even if the two ends of a chunk overlap.
unsafe fn portable(rows: &[Row], count: usize, sum: u32) -> u32 {
    for row in &rows[..count] {
        // SAFETY: the caller vouches for both ends of every chunk.
        unsafe { row.copy() };
    }
    sum
}

/// Bytes that are summed at a time by the portable kernel. With 4 KiB, long runs take 20 % more time; with 32 KiB,
/// scatters do.
const STEP: usize = 16 << 10;

/// Moves chunks through a buffer that is summed, so that the sum is of the stored bytes even if the source is written
/// to meanwhile.
unsafe fn portable_summing(rows: &[Row], count: usize, mut sum: u32) -> u32 {
    let mut buffer = [MaybeUninit::<u8>::uninit(); STEP];
    let buffer = buffer.as_mut_ptr().cast::<u8>();
    let mut filled = 0;
    // SAFETY: called when that many bytes were copied into the buffer.
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

/// Makes the bytes that this thread has scattered visible to others before anything that it does next.
///
/// A scatter may store around the caches, and x86-64 does not order such stores with later ones. So call this before
/// another thread, process or device is told that the bytes have arrived; [`copy`](super::copy) does it itself.
/// (Handing work to another thread through a lock or an atomic exchange has the same effect on x86-64, so a task that
/// moves between threads needs no further call.)
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    x86::settle();
}
