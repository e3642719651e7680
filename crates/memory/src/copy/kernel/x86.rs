//! Kernels for x86-64.
//!
//! All of them work alike: chunks are moved one after the other in program order, while a scout runs a fixed distance
//! ahead in the same order and prefetches. The variants differ in parameters: the [`Register`], whether there is a
//! [`Scout`] (`FETCH`), whether stores go `AROUND` the caches, and the [`Sum`].
//!
//! Figures here and below are GB/s of one thread of a Sapphire Rapids Xeon, between memories of 671 and 336 MB, where
//! `memcpy` of 336 MB reaches 11.8.
//!
//! These alternatives were slower and are not included: `rep movsb` (7.5 where these stores reach 11.8); eight chunks
//! side by side (at most 8 % faster, in chunks of 4 KiB, and slower elsewhere); prefetching the address translations of
//! the destination's pages; a buffer in the first-level cache between loads and stores.

use std::arch::asm;
use std::arch::x86_64::{__m128i, __m256i, __m512i, _MM_HINT_ET0, _mm_prefetch, _mm_sfence};

use self::register::{LINE, Register, TURN, scrap};
use self::scout::Scout;
use self::sum::{Folded, NoSum, Stepped, Sum};
use super::row::{Move, Row, Traffic};

mod register;
mod scout;
mod sum;

pub(super) fn settle() {
    // SAFETY: part of SSE, which every x86-64 has.
    unsafe { _mm_sfence() };
}

macro_rules! kernels {
    ($($name:ident: $features:literal, $register:ty, $sum:ty;)*) => {$(
        pub(super) fn $name(traffic: Traffic) -> Move {
            #[target_feature(enable = $features)]
            unsafe fn kernel<const FETCH: bool, const AROUND: bool>(
                list: &[Row],
                count: usize,
                sum: u32,
            ) -> u32 {
                // SAFETY: the caller vouches for the rows, and this function has the features.
                unsafe { rows::<$register, $sum, FETCH, AROUND>(list, count, sum) }
            }
            match traffic {
                Traffic::Through => kernel::<true, true>,
                Traffic::Fetch => kernel::<true, false>,
                Traffic::Place => kernel::<false, true>,
                Traffic::Near => kernel::<false, false>,
            }
        }
    )*};
}

kernels! {
    sse2: "sse2", __m128i, NoSum;
    avx2: "avx2", __m256i, NoSum;
    avx2_summing: "avx2,sse4.2,pclmulqdq", __m256i, Stepped;
    avx512: "avx512f", __m512i, NoSum;
    avx512_summing: "avx512f,avx2,sse4.2,pclmulqdq,vpclmulqdq", __m512i, Folded;
}

enum Way {
    /// Several pages side by side.
    Wide,
    /// Line by line, with the rest before the first line and after the last one.
    Long,
    /// Line by line, for few lines.
    Lines,
    /// In small registers that together fill lines, since each chunk begins where the last one ended.
    Dense,
    /// Through the caches, for chunks that are too short to fill lines.
    Plain,
}

const SHORT: usize = TURN;

const WIDE: usize = 128 << 10;

impl Way {
    #[inline(always)]
    fn of<const AROUND: bool>(row: &Row, may_be_wide: bool) -> Self {
        let dst = row.dst.addr() | row.run;
        match row.run {
            WIDE.. if may_be_wide => Self::Wide,
            SHORT.. => Self::Long,
            _ if AROUND && (dst | row.dst_stride).is_multiple_of(LINE) => Self::Lines,
            run if AROUND && row.dst_stride == run && dst.is_multiple_of(16) => Self::Dense,
            // At unaligned places, 72 to 240 B: 15 to 80 % faster than through the caches.
            LINE.. if AROUND => Self::Long,
            _ => Self::Plain,
        }
    }
}

/// # Safety
/// As for [`Move`]. This is inlined into a function that has the features of `R` and `C`.
#[inline(always)]
unsafe fn rows<R: Register, C: Sum, const FETCH: bool, const AROUND: bool>(
    list: &[Row],
    count: usize,
    sum: u32,
) -> u32 {
    // SAFETY: the caller vouches for features and rows, here and below.
    let mut sum = unsafe { C::from(sum) };
    let mut scout = Scout::<FETCH>::ahead_of(list);
    for row in &list[..count] {
        let run = row.run;
        macro_rules! each_short {
            ($scouted:expr, $copy:expr) => {
                row.each(|src, dst| {
                    if $scouted {
                        scout.chunk();
                    }
                    // SAFETY: as above.
                    unsafe {
                        $copy(src, dst);
                        sum.rest(src, run);
                    }
                })
            };
        }
        match Way::of::<AROUND>(row, FETCH && AROUND && !C::SUMS) {
            Way::Wide => row.each(|src, dst| {
                // SAFETY: as above.
                unsafe { wide::<R>(src, dst, run) };
                scout.forward(run);
            }),
            Way::Long => row.each(|src, dst| {
                // SAFETY: as above.
                unsafe { long::<R, C, FETCH, AROUND>(src, dst, run, &mut scout, &mut sum) };
            }),
            Way::Lines => each_short!(true, |src, dst| {
                R::copy_steps::<true, LINE>(src, dst, run);
            }),
            Way::Dense if run == 16 => each_short!(true, |src, dst| {
                __m128i::copy::<true, 16>(src, dst);
            }),
            Way::Dense => each_short!(true, |src, dst| {
                __m128i::copy_steps::<true, 16>(src, dst, run);
            }),
            Way::Plain => {
                // Lines are also fetched for the stores around the caches, which keeps the memory busy enough: with a
                // scout, chunks of 16 and 32 B are 15 to 50 % slower.
                if AROUND {
                    scout.pass(row.count);
                }
                match run {
                    16 => each_short!(!AROUND, |src, dst| __m128i::copy::<false, 16>(src, dst)),
                    32 => each_short!(!AROUND, |src, dst| __m128i::copy::<false, 32>(src, dst)),
                    _ => each_short!(!AROUND, |src, dst| scrap(src, dst, run)),
                }
            }
        }
    }
    // SAFETY: as above.
    unsafe { sum.state() }
}

#[inline(always)]
unsafe fn long<R: Register, C: Sum, const FETCH: bool, const AROUND: bool>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    scout: &mut Scout<'_, FETCH>,
    sum: &mut C,
) {
    // Stores around the caches start at a line, and fill lines.
    let head = if AROUND { to_line(dst).min(len) } else { 0 };
    if AROUND {
        claim(dst, head);
        claim(dst.wrapping_add(len), dst.addr().wrapping_add(len) % LINE);
    }
    let takes_over = FETCH && !AROUND && len <= TAKEN_OVER;
    // The sum proceeds in turns from the start of the chunk, so that it gets whole lines of aligned chunks, whatever
    // their destination.
    let turns = (len - head) / TURN * TURN;
    let mut at = 0;
    // SAFETY: offsets stay below `len`; the caller vouches for the chunk, and for the features.
    unsafe {
        while at < turns {
            // As far as the scout's way is contiguous.
            let stretch = scout.straight(turns - at);
            let ahead = scout.position().wrapping_sub(at);
            let end = at + stretch;
            while at < end {
                for line in (at..at + TURN).step_by(LINE) {
                    Scout::<FETCH>::prefetch(ahead.wrapping_add(line));
                    if takes_over {
                        take_over(dst.wrapping_add(line + TAKEN_OVER_AHEAD));
                    }
                    R::copy::<AROUND, LINE>(src.add(head + line), dst.add(head + line));
                }
                sum.turn(src.add(at));
                at += TURN;
            }
            scout.forward(stretch);
        }
        if turns < len {
            scout.turn();
        }
        let mut to = head + at;
        while to + LINE <= len {
            R::copy::<AROUND, LINE>(src.add(to), dst.add(to));
            to += LINE;
        }
        scrap(src, dst, head);
        scrap(src.add(to), dst.add(to), len - to);
        sum.rest(src.add(at), len - at);
    }
}

/// The number of pages of a wide run that are moved side by side.
///
/// With several pages in progress, the prefetcher and the memory banks have more to work on: in runs of 1.25 MiB 12.6
/// instead of 11.7; the same with 15 pages, and 12.3 with 4 of 8 KiB.
const ABREAST: usize = 8;

/// The size of a page in bytes. The hardware prefetcher treats the bytes of each page as a separate sequence.
const PAGE: usize = 4096;

/// Moves one run of [`WIDE`] or more bytes around the caches.
#[inline(always)]
unsafe fn wide<R: Register>(src: *const u8, dst: *mut u8, len: usize) {
    let head = to_line(dst);
    let mut at = head;
    // SAFETY: as in `long`.
    unsafe {
        while at + ABREAST * PAGE <= len {
            for turn in (at..at + PAGE).step_by(TURN) {
                for to in (turn..turn + ABREAST * PAGE).step_by(PAGE) {
                    R::copy::<true, TURN>(src.add(to), dst.add(to));
                }
            }
            at += ABREAST * PAGE;
        }
        while at + LINE <= len {
            R::copy::<true, LINE>(src.add(at), dst.add(at));
            at += LINE;
        }
        scrap(src, dst, head);
        scrap(src.add(at), dst.add(at), len - at);
    }
}

/// Returns the number of bytes from `dst` to the start of the next line, at most 63.
#[inline(always)]
fn to_line(dst: *mut u8) -> usize {
    dst.addr().wrapping_neg() % LINE
}

/// Prefetches the line at `dst` for writing, if only `part` of it will be written: a store that waits for its line
/// holds up all stores behind it.
#[inline(always)]
fn claim(dst: *mut u8, part: usize) {
    if part > 0 {
        // SAFETY: a prefetch of any address is harmless, and has no effect on processors without it.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(dst.cast_const().cast()) };
    }
}

/// For chunks of up to this length, the cache lines of their buffer are acquired before the stores. For longer ones
/// the processor does that itself.
const TAKEN_OVER: usize = 4096;

/// The distance in bytes by which this runs ahead of the stores; 512 and 2,048 are nearly as good.
const TAKEN_OVER_AHEAD: usize = 1024;

/// Prefetches the line at `dst` exclusively for this core: the last reader of a ring's slot still has its lines in its
/// caches.
///
/// On an EPYC of the fourth generation, in chunks of 512 B: a ring between two processes reaches 0.60 of one `memcpy`
/// instead of 0.46, gathering into a private buffer 0.79 instead of 0.71, with a sum 0.80 instead of 0.60.
#[inline(always)]
fn take_over(dst: *mut u8) {
    // Not `_mm_prefetch::<_MM_HINT_ET0>`, which becomes a prefetch for reading in builds for any x86-64.
    // SAFETY: a prefetch of any address is harmless, and does nothing on processors that do not know it.
    unsafe { asm!("prefetchw [{}]", in(reg) dst.addr(), options(nostack, preserves_flags, nomem)) };
}
