//! Kernels for x86-64.
//!
//! There is one idea here: move the chunks one after the other in program order, while a scout
//! runs a fixed distance ahead in the same order and prefetches. The rest are parameters: which
//! [`Register`], whether there is a [`Scout`] (`FETCH`), whether stores go `AROUND` the caches, and
//! which [`Sum`].
//!
//! What does not win and is therefore not here: `rep movsb` (7.5 GB/s where these stores make
//! 11.8), prefetching without temporal locality (7.0), prefetching into the first level (8.1 where
//! the second makes 10.8: the first level's few fill buffers are needed for the stores), and moving
//! eight chunks of 4 or 8 KiB side by side (up to 5 % at those lengths, but twice the code).
//! Figures: 512 MiB of 512 B chunks, contiguous 512 MiB, one thread of a Sapphire Rapids Xeon.

use std::arch::x86_64::{__m128i, __m256i, __m512i, _mm_sfence};

use self::register::{LINE, Register, TURN, scrap};
use self::scout::Scout;
use self::sum::{Folded, NoSum, Stepped, Sum};
use super::{Move, Row, Traffic};

mod register;
mod scout;
mod sum;

/// Chunks shorter than this are moved by code made for their length.
const SHORT: usize = TURN;

/// Runs from this length on are moved in groups of [`ABREAST`] pages.
const WIDE: usize = 128 << 10;

/// How many pages of a wide run are moved side by side.
///
/// With more than one page open, the prefetcher and the memory's banks have more to work on: 12.6
/// GB/s instead of 11.7 in runs of 1.25 MiB, as much with 15 pages, 12.3 with 4 pages of 8 KiB.
const ABREAST: usize = 8;

/// Bytes of a page, as the hardware's prefetcher sees it.
const PAGE: usize = 4096;

/// Ends the stores that went around the caches.
pub(super) fn settle() {
    // SAFETY: part of SSE, which every x86-64 has.
    unsafe { _mm_sfence() };
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $features:literal, $register:ty, $sum:ty;)*) => {$(
        $(#[$doc])*
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

/// Moves the first `count` rows of a list.
///
/// # Safety
/// As [`Move`] says; inlined into a function that has the features of `R` and `C`.
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
        if row.run < SHORT {
            // SAFETY: as above.
            unsafe { short::<R, C, FETCH, AROUND>(row, &mut scout, &mut sum) };
        } else if AROUND && !C::SUMS && FETCH && row.run >= WIDE {
            each(row, |src, dst| {
                // SAFETY: as above.
                unsafe { wide::<R>(src, dst, row.run) };
                scout.forward(row.run);
            });
        } else {
            each(row, |src, dst| {
                // SAFETY: as above.
                unsafe { long::<R, C, FETCH, AROUND>(src, dst, row.run, &mut scout, &mut sum) };
            });
        }
    }
    // SAFETY: as above.
    unsafe { sum.state() }
}

/// Calls `chunk` with both ends of each chunk of a row.
#[inline(always)]
fn each(row: &Row, mut chunk: impl FnMut(*const u8, *mut u8)) {
    let (mut src, mut dst) = (row.src, row.dst);
    for _ in 0..row.count {
        chunk(src, dst);
        src = src.wrapping_add(row.src_stride);
        dst = dst.wrapping_add(row.dst_stride);
    }
}

/// Moves one chunk of [`SHORT`] or more.
#[inline(always)]
unsafe fn long<R: Register, C: Sum, const FETCH: bool, const AROUND: bool>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    scout: &mut Scout<'_, FETCH>,
    sum: &mut C,
) {
    // SAFETY: offsets stay below `len`; the caller vouches for the chunk, and for the features.
    // Stores around the caches start at a line.
    unsafe {
        let head = if AROUND { to_line(dst) } else { 0 };
        scrap(src, dst, head);
        // The sum follows in turns from the chunk's start, so that it sees whole lines of even
        // chunks wherever they go to.
        let turns = (len - head) / TURN * TURN;
        let mut at = 0;
        while at < turns {
            // As far as the scout sees a straight way ahead.
            let stretch = scout.straight(turns - at);
            let ahead = scout.position().wrapping_sub(at);
            let end = at + stretch;
            while at < end {
                Scout::<FETCH>::prefetch(ahead.wrapping_add(at));
                R::copy::<AROUND, TURN>(src.add(head + at), dst.add(head + at));
                sum.turn(src.add(at));
                at += TURN;
            }
            scout.forward(stretch);
        }
        if turns < len {
            Scout::<FETCH>::prefetch(scout.position());
            scout.forward(TURN);
        }
        let mut to = head + at;
        while to + LINE <= len {
            R::copy::<AROUND, LINE>(src.add(to), dst.add(to));
            to += LINE;
        }
        scrap(src.add(to), dst.add(to), len - to);
        sum.rest(src.add(at), len - at);
    }
}

/// Moves one run of [`WIDE`] or more, several of its pages side by side.
#[inline(always)]
unsafe fn wide<R: Register>(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: as in `long`.
    unsafe {
        let mut at = to_line(dst);
        scrap(src, dst, at);
        while at + ABREAST * PAGE <= len {
            let end = at + PAGE;
            while at < end {
                for page in 0..ABREAST {
                    let at = at + page * PAGE;
                    Scout::<true>::prefetch(src.wrapping_add(at + TURN));
                    R::copy::<true, TURN>(src.add(at), dst.add(at));
                }
                at += TURN;
            }
            at += (ABREAST - 1) * PAGE;
        }
        while at + LINE <= len {
            R::copy::<true, LINE>(src.add(at), dst.add(at));
            at += LINE;
        }
        scrap(src.add(at), dst.add(at), len - at);
    }
}

/// Bytes from `dst` to the start of the next line; at most 63.
#[inline(always)]
fn to_line(dst: *mut u8) -> usize {
    dst.addr().wrapping_neg() % LINE
}

/// Moves a row of chunks shorter than [`SHORT`].
///
/// Stores around the caches only win where they fill lines: in lines of their own, or in registers
/// one after the other.
#[inline(always)]
unsafe fn short<R: Register, C: Sum, const FETCH: bool, const AROUND: bool>(
    row: &Row,
    scout: &mut Scout<'_, FETCH>,
    sum: &mut C,
) {
    let run = row.run;
    let lines = AROUND && (row.dst.addr() | row.dst_stride | run).is_multiple_of(LINE);
    let dense = AROUND && row.dst_stride == run && (row.dst.addr() | run).is_multiple_of(16);
    macro_rules! chunks {
        ($move:expr) => {
            each(row, |src, dst| {
                scout.chunk();
                // SAFETY: the caller vouches for the chunks, and for the features.
                unsafe {
                    $move(src, dst);
                    sum.rest(src, run);
                }
            })
        };
    }
    match run {
        64 if lines => chunks!(|src, dst| R::copy::<true, 64>(src, dst)),
        _ if lines => chunks!(|src, dst| R::copy_steps::<true, LINE>(src, dst, run)),
        16 if dense => chunks!(|src, dst| __m128i::copy::<true, 16>(src, dst)),
        32 if dense => chunks!(|src, dst| __m128i::copy::<true, 32>(src, dst)),
        _ if dense => chunks!(|src, dst| __m128i::copy_steps::<true, 16>(src, dst, run)),
        16 => chunks!(|src, dst| __m128i::copy::<false, 16>(src, dst)),
        32 => chunks!(|src, dst| __m128i::copy::<false, 32>(src, dst)),
        64 => chunks!(|src, dst| R::copy::<false, 64>(src, dst)),
        _ => chunks!(|src, dst| scrap(src, dst, run)),
    }
}
