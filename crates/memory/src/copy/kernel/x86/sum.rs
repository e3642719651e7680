//! CRC-32C of bytes while they are moved.
//!
//! A state is the register of the bitwise algorithm: reflected, with the first bit of the polynomial in bit 31, and
//! inverted neither before nor after. The algorithms use two facts. The state is linear, so `state(a ++ b) =
//! shift(state(a), len(b)) ^ state_from_0(b)`. And a shift by n bytes is a multiplication by `x^(8n)` modulo the
//! polynomial. A carry-less product of two reflected words lacks a factor `x`, and the `crc32` instruction on it
//! multiplies by `x^32` and reduces, so the constant for a shift by n bytes is `x^(8n - 33)`; see Gopal et al., "Fast
//! CRC Computation for iSCSI Polynomial Using CRC32 Instruction" and "... Using PCLMULQDQ Instruction", Intel 2009 to
//! 2011.

use std::arch::x86_64::*;

use super::register::{LINE, TURN};

/// # Safety
/// All functions need the features of the sum, and are inlined into a function that has them. They read the given
/// bytes.
pub(super) trait Sum {
    const SUMS: bool;

    unsafe fn from(state: u32) -> Self;
    /// Adds [`TURN`] bytes.
    unsafe fn turn(&mut self, src: *const u8);
    /// Adds one [`LINE`].
    unsafe fn line(&mut self, src: *const u8);
    /// Adds any number of bytes, preferably less than a line.
    unsafe fn bytes(&mut self, src: *const u8, len: usize);
    unsafe fn state(&mut self) -> u32;

    /// Adds less than a turn.
    #[inline(always)]
    unsafe fn rest(&mut self, src: *const u8, len: usize) {
        let mut at = 0;
        // SAFETY: offsets stay below `len`; the caller vouches for the rest.
        unsafe {
            while at + LINE <= len {
                self.line(src.add(at));
                at += LINE;
            }
            self.bytes(src.add(at), len - at);
        }
    }
}

pub(super) struct NoSum;

impl Sum for NoSum {
    const SUMS: bool = false;

    #[inline(always)]
    unsafe fn from(_: u32) -> Self {
        Self
    }
    #[inline(always)]
    unsafe fn turn(&mut self, _: *const u8) {}
    #[inline(always)]
    unsafe fn line(&mut self, _: *const u8) {}
    #[inline(always)]
    unsafe fn bytes(&mut self, _: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn state(&mut self) -> u32 {
        0
    }
    #[inline(always)]
    unsafe fn rest(&mut self, _: *const u8, _: usize) {}
}

/// A sum with the `crc32` instruction. It works on several lines side by side, since the instruction has a latency of
/// 3.
///
/// Needs SSE 4.2 and PCLMULQDQ.
pub(super) struct Stepped(u32);

impl Sum for Stepped {
    const SUMS: bool = true;

    #[inline(always)]
    unsafe fn from(state: u32) -> Self {
        Self(state)
    }

    #[inline(always)]
    unsafe fn turn(&mut self, src: *const u8) {
        // SAFETY: the caller vouches for a turn's bytes and the features.
        unsafe {
            let (a, b) = (line_sum(src), line_sum(src.add(LINE)));
            let (c, d) = (line_sum(src.add(2 * LINE)), line_sum(src.add(3 * LINE)));
            let (ab, cd) = (shift(a, BY_LINE) ^ b, shift(c, BY_LINE) ^ d);
            self.0 = shift(self.0, BY_TURN) ^ shift(ab, BY_TWO_LINES) ^ cd;
        }
    }

    #[inline(always)]
    unsafe fn line(&mut self, src: *const u8) {
        // SAFETY: as above.
        unsafe { self.0 = shift(self.0, BY_LINE) ^ line_sum(src) };
    }

    #[inline(always)]
    unsafe fn bytes(&mut self, src: *const u8, len: usize) {
        let mut at = 0;
        // SAFETY: as above; offsets stay below `len`.
        unsafe {
            while at + 8 <= len {
                self.0 = _mm_crc32_u64(self.0.into(), word(src.add(at))) as u32;
                at += 8;
            }
            while at < len {
                self.0 = _mm_crc32_u8(self.0, src.add(at).read());
                at += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn state(&mut self) -> u32 {
        self.0
    }
}

/// A sum with carry-less multiplication of whole lines.
///
/// Earlier bytes are represented by 256 bytes with the same sum. Each new line is added to the oldest of these four
/// lines, shifted by 256 bytes. That is little work per line (12 % of the time of 512 B chunks, next to nothing in long
/// ones), as long as whole lines are added. A shorter piece first reduces the held bytes to a state, at the cost of
/// about two turns.
///
/// Needs AVX-512 F, VPCLMULQDQ, and the features of [`Stepped`].
pub(super) struct Folded {
    /// The held lines, the oldest first.
    held: [__m512i; 4],
    /// Whether any line is held; otherwise everything is in `sum`.
    holds: bool,
    sum: Stepped,
}

impl Folded {
    /// Loads one line, and XORs the running state into its first bytes if no line is held yet.
    #[inline(always)]
    unsafe fn take(&mut self, src: *const u8) -> __m512i {
        // SAFETY: the caller vouches for a line's bytes and the features.
        unsafe {
            let line = _mm512_loadu_si512(src.cast());
            if self.holds {
                return line;
            }
            let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(self.sum.0 as i32));
            self.sum.0 = 0;
            self.holds = true;
            _mm512_xor_si512(line, state)
        }
    }

    /// Adds `old`, shifted by 256 bytes, to `new`.
    #[inline(always)]
    unsafe fn fold(old: __m512i, new: __m512i) -> __m512i {
        // SAFETY: the caller vouches for the features.
        unsafe {
            let by = _mm512_set4_epi32(0, BY_TURN as i32, 0, BY_TURN_AND_WORD as i32);
            let first = _mm512_clmulepi64_epi128(old, by, 0x00);
            let second = _mm512_clmulepi64_epi128(old, by, 0x11);
            _mm512_ternarylogic_epi64::<XOR>(first, second, new)
        }
    }

    /// Reduces the held lines to a state.
    #[inline(always)]
    unsafe fn settle(&mut self) {
        /// Not inlined: it is seldom needed for whole lines, but would be in every loop of every kernel.
        #[inline(never)]
        #[target_feature(enable = "sse4.2,pclmulqdq")]
        unsafe fn turn(sum: &mut Stepped, held: *const u8) {
            // SAFETY: the caller vouches for a turn's bytes.
            unsafe { sum.turn(held) };
        }
        if self.holds {
            self.holds = false;
            // SAFETY: the caller vouches for the features; a turn is four lines.
            unsafe { turn(&mut self.sum, self.held.as_ptr().cast()) };
        }
    }
}

impl Sum for Folded {
    const SUMS: bool = true;

    #[inline(always)]
    unsafe fn from(state: u32) -> Self {
        Self {
            // SAFETY: the caller vouches for the features.
            held: [unsafe { _mm512_setzero_si512() }; 4],
            holds: false,
            sum: Stepped(state),
        }
    }

    #[inline(always)]
    unsafe fn turn(&mut self, src: *const u8) {
        // SAFETY: the caller vouches for a turn's bytes and the features.
        unsafe {
            let held = self.holds;
            for i in 0..4 {
                let line = self.take(src.add(i * LINE));
                self.held[i] = if held { Self::fold(self.held[i], line) } else { line };
            }
        }
    }

    #[inline(always)]
    unsafe fn line(&mut self, src: *const u8) {
        // SAFETY: as above. Zeros before the first bytes do not change a sum that starts from 0.
        unsafe {
            let [a, b, c, d] = if self.holds { self.held } else { [_mm512_setzero_si512(); 4] };
            let line = self.take(src);
            self.held = [b, c, d, Self::fold(a, line)];
        }
    }

    #[inline(always)]
    unsafe fn bytes(&mut self, src: *const u8, len: usize) {
        if len > 0 {
            // SAFETY: as above.
            unsafe {
                self.settle();
                self.sum.bytes(src, len);
            }
        }
    }

    #[inline(always)]
    unsafe fn state(&mut self) -> u32 {
        // SAFETY: as above.
        unsafe {
            self.settle();
            self.sum.state()
        }
    }
}

/// The truth table of `a ^ b ^ c`.
const XOR: i32 = 0x96;

#[inline(always)]
unsafe fn word(src: *const u8) -> u64 {
    // SAFETY: the caller vouches for the bytes.
    unsafe { src.cast::<u64>().read_unaligned() }
}

#[inline(always)]
unsafe fn line_sum(src: *const u8) -> u32 {
    let mut sum = 0;
    for i in 0..LINE / 8 {
        // SAFETY: the caller vouches for the line and the features.
        sum = unsafe { _mm_crc32_u64(sum, word(src.add(i * 8))) };
    }
    sum as u32
}

/// Shifts a state by a number of bytes, given as the constant `by`.
#[inline(always)]
unsafe fn shift(state: u32, by: u32) -> u32 {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let (state, by) = (_mm_cvtsi32_si128(state as i32), _mm_cvtsi32_si128(by as i32));
        let product = _mm_clmulepi64_si128(state, by, 0x00);
        _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64) as u32
    }
}

const BY_LINE: u32 = by_bytes(LINE);
const BY_TWO_LINES: u32 = by_bytes(2 * LINE);
const BY_TURN: u32 = by_bytes(TURN);
/// The constant for the first eight of each sixteen bytes, which are shifted by eight more.
const BY_TURN_AND_WORD: u32 = by_bytes(TURN + 8);

/// Returns the constant of a shift by `n` bytes, at least 5: `x^(8n - 33)` modulo the polynomial.
const fn by_bytes(n: usize) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut value: u32 = 1 << 31;
    let mut i = 33;
    while i < 8 * n {
        let carry = if value & 1 == 1 { POLYNOMIAL } else { 0 };
        value = value >> 1 ^ carry;
        i += 1;
    }
    value
}
