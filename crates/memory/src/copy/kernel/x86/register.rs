//! Registers, and moving bytes through them.

use std::arch::x86_64::*;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Bytes that are moved (and prefetched, and summed) at a time, if there are as many.
pub(super) const TURN: usize = 4 * LINE;

/// # Safety
/// All functions need the features of the register, and are inlined into a function that has them. Bytes are read and
/// written at the given pointers; `stream` needs an aligned one.
pub(super) trait Register: Copy {
    unsafe fn load(src: *const u8) -> Self;
    /// Stores it into the caches.
    unsafe fn store(self, dst: *mut u8);
    /// Stores it around the caches. `dst` is aligned to the register.
    unsafe fn stream(self, dst: *mut u8);

    /// Moves `BYTES`, a multiple of the register's size: up to four loads, then as many stores, so that the stores that
    /// fill a line are consecutive.
    #[inline(always)]
    unsafe fn copy<const AROUND: bool, const BYTES: usize>(src: *const u8, dst: *mut u8) {
        const { assert!(BYTES.is_multiple_of(size_of::<Self>())) };
        let width = size_of::<Self>();
        let mut at = 0;
        while at < BYTES {
            // SAFETY: offsets stay below `BYTES`; the caller vouches for the rest.
            unsafe {
                let mut held = [Self::load(src.add(at)); 4];
                let mut n = 1;
                while n < 4 && at + n * width < BYTES {
                    held[n] = Self::load(src.add(at + n * width));
                    n += 1;
                }
                let mut i = 0;
                while i < n {
                    if AROUND {
                        held[i].stream(dst.add(at));
                    } else {
                        held[i].store(dst.add(at));
                    }
                    at += width;
                    i += 1;
                }
            }
        }
    }

    /// Moves `len` bytes, a multiple of `STEP`.
    #[inline(always)]
    unsafe fn copy_steps<const AROUND: bool, const STEP: usize>(src: *const u8, dst: *mut u8, len: usize) {
        let mut at = 0;
        while at < len {
            // SAFETY: offsets stay below `len`; the caller vouches for the rest.
            unsafe { Self::copy::<AROUND, STEP>(src.add(at), dst.add(at)) };
            at += STEP;
        }
    }
}

macro_rules! register {
    ($type:ty, $load:ident, $store:ident, $stream:ident) => {
        impl Register for $type {
            #[inline(always)]
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: the caller vouches for the bytes and the features.
                unsafe { $load(src.cast()) }
            }
            #[inline(always)]
            unsafe fn store(self, dst: *mut u8) {
                // SAFETY: as above.
                unsafe { $store(dst.cast(), self) }
            }
            #[inline(always)]
            unsafe fn stream(self, dst: *mut u8) {
                // SAFETY: as above. Kernels' callers fence.
                unsafe { $stream(dst.cast(), self) }
            }
        }
    };
}

register!(__m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128);
register!(__m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256);
register!(__m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512);

/// Moves a few bytes: the rest before or after whole lines, or a short odd chunk.
///
/// # Safety
/// `len` bytes can be read at `src` and written at `dst`, which do not overlap.
#[inline(always)]
pub(super) unsafe fn scrap(src: *const u8, dst: *mut u8, len: usize) {
    /// Moves `len` bytes in steps of `T`. The last step may overlap the one before.
    #[inline(always)]
    unsafe fn steps<T: Copy>(src: *const u8, dst: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        let mut at = 0;
        while at < last {
            // SAFETY: `at` and `last` leave room for a `T`; the accesses are unaligned ones.
            unsafe { dst.add(at).cast::<T>().write_unaligned(src.add(at).cast::<T>().read_unaligned()) };
            at += size_of::<T>();
        }
        // SAFETY: as above.
        unsafe { dst.add(last).cast::<T>().write_unaligned(src.add(last).cast::<T>().read_unaligned()) };
    }
    // SAFETY: each arm has at least one `T` to move.
    unsafe {
        match len {
            0 => {}
            1..4 => steps::<u8>(src, dst, len),
            4..8 => steps::<u32>(src, dst, len),
            8..16 => steps::<u64>(src, dst, len),
            16.. => steps::<__m128i>(src, dst, len),
        }
    }
}
