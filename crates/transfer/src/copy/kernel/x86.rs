//! Kernels for x86-64: software prefetch and non-temporal stores.

use std::arch::x86_64::*;

use super::Row;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes moved per piece and turn where several pieces are moved side by side.
const TURN: usize = 4 * LINE;
/// How many pieces are moved side by side.
const ABREAST: usize = 8;
/// How many bytes of each coming piece are prefetched; the hardware does the rest of a long one.
const PREFETCH: usize = 512;
const PIECE: usize = 4096;
const SMALL: usize = 256;

/// A register and how it is loaded and stored.
trait Register: Copy {
    const BYTES: usize = size_of::<Self>();
    unsafe fn load(src: *const u8) -> Self;
    unsafe fn store(self, dst: *mut u8);
    unsafe fn stream(self, dst: *mut u8);
}

macro_rules! register {
    ($type:ty, $load:ident, $store:ident, $stream:ident) => {
        impl Register for $type {
            #[inline(always)]
            unsafe fn load(src: *const u8) -> Self {
                unsafe { $load(src.cast()) }
            }
            #[inline(always)]
            unsafe fn store(self, dst: *mut u8) {
                unsafe { $store(dst.cast(), self) }
            }
            #[inline(always)]
            unsafe fn stream(self, dst: *mut u8) {
                unsafe { $stream(dst.cast(), self) }
            }
        }
    };
}

register!(__m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128);
register!(
    __m256i,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_stream_si256
);
register!(
    __m512i,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_stream_si512
);

/// Moves `BYTES`; `dst` is aligned to a register if NT.
#[inline(always)]
unsafe fn block<R: Register, const NT: bool, const BYTES: usize>(src: *const u8, dst: *mut u8) {
    unsafe {
        let mut at = 0;
        while at < BYTES {
            // up to 4 registers at a time
            let a = R::load(src.add(at));
            let b = if at + R::BYTES < BYTES {
                R::load(src.add(at + R::BYTES))
            } else {
                a
            };
            let c = if at + 2 * R::BYTES < BYTES {
                R::load(src.add(at + 2 * R::BYTES))
            } else {
                a
            };
            let d = if at + 3 * R::BYTES < BYTES {
                R::load(src.add(at + 3 * R::BYTES))
            } else {
                a
            };
            put::<R, NT>(a, dst.add(at));
            if at + R::BYTES < BYTES {
                put::<R, NT>(b, dst.add(at + R::BYTES));
            }
            if at + 2 * R::BYTES < BYTES {
                put::<R, NT>(c, dst.add(at + 2 * R::BYTES));
            }
            if at + 3 * R::BYTES < BYTES {
                put::<R, NT>(d, dst.add(at + 3 * R::BYTES));
            }
            at += 4 * R::BYTES;
        }
    }
}
#[inline(always)]
unsafe fn put<R: Register, const NT: bool>(r: R, dst: *mut u8) {
    unsafe { if NT { r.stream(dst) } else { r.store(dst) } }
}

#[inline(always)]
fn prefetch(src: *const u8) {
    unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) }
}

#[derive(Clone, Copy)]
struct Piece {
    src: *const u8,
    dst: *mut u8,
    len: usize,
}

struct Pieces<'a> {
    rows: &'a [Row],
    row: usize,
    chunk: usize,
    at: usize,
}
impl Pieces<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<Piece> {
        let row = self.rows.get(self.row)?;
        let src = row.src.wrapping_add(self.chunk * row.src_stride + self.at);
        let dst = row.dst.wrapping_add(self.chunk * row.dst_stride + self.at);
        let left = row.run - self.at;
        let len = if left <= PIECE {
            self.at = 0;
            self.chunk += 1;
            if self.chunk == row.count {
                self.chunk = 0;
                self.row += 1;
            }
            left
        } else {
            let len = PIECE - dst.addr() % LINE;
            self.at += len;
            len
        };
        Some(Piece { src, dst, len })
    }
}

#[inline(always)]
unsafe fn large<R: Register, const FETCH: bool, const NT: bool>(rows: &[Row], count: usize) {
    let mut pieces = Pieces {
        rows: if FETCH { rows } else { &rows[..count] },
        row: 0,
        chunk: 0,
        at: 0,
    };
    const NONE: Piece = Piece {
        src: std::ptr::null(),
        dst: std::ptr::null_mut(),
        len: 0,
    };
    let mut next = [NONE; ABREAST];
    let mut n = 0;
    while n < ABREAST && pieces.row < count {
        match pieces.next() {
            Some(p) => next[n] = p,
            None => break,
        }
        n += 1;
    }
    while n > 0 {
        let mut now = next;
        let group = n;
        // the next group: only those of the rows to move count, others are shown
        n = 0;
        let mut shown = 0;
        while shown < ABREAST {
            let mine = pieces.row < count;
            match pieces.next() {
                Some(p) => next[shown] = p,
                None => break,
            }
            shown += 1;
            n += usize::from(mine);
        }
        if FETCH {
            for p in shown..ABREAST {
                next[p].src = now[0].src;
            }
        }
        let mut common = usize::MAX;
        for piece in &mut now[..group] {
            unsafe {
                if NT {
                    let head = ((piece.dst as usize).wrapping_neg() % LINE).min(piece.len);
                    if head > 0 {
                        std::ptr::copy_nonoverlapping(piece.src, piece.dst, head);
                        piece.src = piece.src.add(head);
                        piece.dst = piece.dst.add(head);
                        piece.len -= head;
                    }
                }
                common = common.min(piece.len / TURN * TURN);
            }
        }
        let mut at = 0;
        while at < common {
            for p in 0..group {
                unsafe {
                    let piece = now.get_unchecked(p);
                    if FETCH && at < PREFETCH {
                        let ahead = next.get_unchecked(p).src.wrapping_add(at);
                        prefetch(ahead);
                        prefetch(ahead.wrapping_add(64));
                        prefetch(ahead.wrapping_add(128));
                        prefetch(ahead.wrapping_add(192));
                    }
                    block::<R, NT, TURN>(piece.src.add(at), piece.dst.add(at));
                }
            }
            at += TURN;
        }
        for piece in &now[..group] {
            let mut at = common;
            unsafe {
                while at + LINE <= piece.len {
                    block::<R, NT, LINE>(piece.src.add(at), piece.dst.add(at));
                    at += LINE;
                }
                if at < piece.len {
                    std::ptr::copy_nonoverlapping(
                        piece.src.add(at),
                        piece.dst.add(at),
                        piece.len - at,
                    );
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn small<R: Register, const FETCH: bool, const NT: bool>(row: &Row, next: Option<&Row>) {
    let dense = row.dst_stride == row.run && row.run % 16 == 0 && row.dst.addr() % 16 == 0;
    let lines = (row.dst.addr() | row.dst_stride | row.run) % 64 == 0;
    unsafe {
        match row.run {
            16 => {
                if NT && dense {
                    each::<FETCH, _>(row, next, |s, d| block::<__m128i, true, 16>(s, d))
                } else {
                    each::<FETCH, _>(row, next, |s, d| block::<__m128i, false, 16>(s, d))
                }
            }
            32 => {
                if NT && dense {
                    each::<FETCH, _>(row, next, |s, d| block::<__m128i, true, 32>(s, d))
                } else {
                    each::<FETCH, _>(row, next, |s, d| block::<__m128i, false, 32>(s, d))
                }
            }
            64 => {
                if NT && lines {
                    each::<FETCH, _>(row, next, |s, d| block::<R, true, 64>(s, d))
                } else {
                    each::<FETCH, _>(row, next, |s, d| block::<R, false, 64>(s, d))
                }
            }
            run => {
                if NT && lines {
                    each::<FETCH, _>(row, next, |s, d| {
                        let mut at = 0;
                        while at < run {
                            block::<R, true, 64>(s.add(at), d.add(at));
                            at += 64;
                        }
                    })
                } else if run % 16 == 0 {
                    if NT && dense {
                        each::<FETCH, _>(row, next, |s, d| {
                            let mut at = 0;
                            while at < run {
                                block::<__m128i, true, 16>(s.add(at), d.add(at));
                                at += 16;
                            }
                        })
                    } else {
                        each::<FETCH, _>(row, next, |s, d| {
                            let mut at = 0;
                            while at < run {
                                block::<__m128i, false, 16>(s.add(at), d.add(at));
                                at += 16;
                            }
                        })
                    }
                } else {
                    each::<FETCH, _>(row, next, |s, d| std::ptr::copy_nonoverlapping(s, d, run))
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn each<const FETCH: bool, F: Fn(*const u8, *mut u8)>(row: &Row, next: Option<&Row>, f: F) {
    let (mut s, mut d) = (row.src, row.dst);
    let fetch = FETCH && row.src_stride > row.run;
    if !fetch {
        for _ in 0..row.count {
            f(s, d);
            s = s.wrapping_add(row.src_stride);
            d = d.wrapping_add(row.dst_stride);
        }
        return;
    }
    let k = (1024 / row.run).min(row.count);
    let mut a = row.src.wrapping_add(k * row.src_stride);
    for _ in 0..row.count - k {
        prefetch(a);
        if row.run > 64 {
            let mut o = 64;
            while o < row.run {
                prefetch(a.wrapping_add(o));
                o += 64;
            }
        }
        f(s, d);
        s = s.wrapping_add(row.src_stride);
        d = d.wrapping_add(row.dst_stride);
        a = a.wrapping_add(row.src_stride);
    }
    let (mut a, stride) = next.map_or((row.src, 0), |n| (n.src, n.src_stride));
    for _ in 0..k {
        prefetch(a);
        if row.run > 64 {
            let mut o = 64;
            while o < row.run {
                prefetch(a.wrapping_add(o));
                o += 64;
            }
        }
        f(s, d);
        s = s.wrapping_add(row.src_stride);
        d = d.wrapping_add(row.dst_stride);
        a = a.wrapping_add(stride);
    }
}

/// One chunk after the other, prefetching `AHEAD` bytes ahead in that order.
#[inline(always)]
unsafe fn sequential<R: Register, const FETCH: bool, const NT: bool>(
    row: &Row,
    next: Option<&Row>,
) {
    let ahead = env_ahead();
    let k = ahead.div_ceil(row.run); // chunks ahead of the far end
    for i in 0..row.count {
        let (mut s, mut d, mut len) = (
            row.src.wrapping_add(i * row.src_stride),
            row.dst.wrapping_add(i * row.dst_stride),
            row.run,
        );
        unsafe {
            // where the coming bytes are: those of this chunk from `here` on until `turn`, then those of `then`
            let chunk = |j: usize| {
                if j < row.count {
                    row.src.wrapping_add(j * row.src_stride)
                } else {
                    match next {
                        Some(n) => n
                            .src
                            .wrapping_add((j - row.count).min(n.count - 1) * n.src_stride),
                        None => row.src,
                    }
                }
            };
            // bytes [0, edge) of this chunk look at chunk i+k-1 offset by `ahead - (k-1)*run`; the rest at chunk i+k
            let shift = ahead - (k - 1) * row.run;
            let edge = row.run - shift;
            let (near, far) = (
                chunk(i + k - 1).wrapping_add(shift),
                chunk(i + k).wrapping_sub(edge),
            );
            let mut at = 0;
            if NT {
                let head = ((d as usize).wrapping_neg() % LINE).min(len);
                if head > 0 {
                    std::ptr::copy_nonoverlapping(s, d, head);
                    s = s.add(head);
                    d = d.add(head);
                    len -= head;
                }
            }
            while at + TURN <= len {
                if FETCH {
                    let a = if at < edge { near } else { far }.wrapping_add(at);
                    prefetch(a);
                    prefetch(a.wrapping_add(64));
                    prefetch(a.wrapping_add(128));
                    prefetch(a.wrapping_add(192));
                }
                block::<R, NT, TURN>(s.add(at), d.add(at));
                at += TURN;
            }
            while at + LINE <= len {
                if FETCH {
                    prefetch(if at < edge { near } else { far }.wrapping_add(at));
                }
                block::<R, NT, LINE>(s.add(at), d.add(at));
                at += LINE;
            }
            if at < len {
                std::ptr::copy_nonoverlapping(s.add(at), d.add(at), len - at);
            }
        }
    }
}
pub static T: [std::sync::atomic::AtomicUsize; 4] = [
    std::sync::atomic::AtomicUsize::new(2048),
    std::sync::atomic::AtomicUsize::new(256),
    std::sync::atomic::AtomicUsize::new(0),
    std::sync::atomic::AtomicUsize::new(0),
];
#[inline(always)]
fn env_ahead() -> usize {
    T[0].load(std::sync::atomic::Ordering::Relaxed)
}

#[inline(always)]
unsafe fn all<R: Register, const FETCH: bool, const NT: bool>(rows: &[Row], count: usize) {
    let lock = T[1].load(std::sync::atomic::Ordering::Relaxed);
    let tiny = T[2].load(std::sync::atomic::Ordering::Relaxed);
    let mut i = 0;
    while i < count {
        unsafe {
            if rows[i].run < tiny {
                small::<R, FETCH, NT>(&rows[i], rows.get(i + 1));
                i += 1;
            } else if rows[i].run < lock {
                sequential::<R, FETCH, NT>(&rows[i], rows.get(i + 1));
                i += 1;
            } else {
                let mut j = i + 1;
                while j < count && rows[j].run >= lock {
                    j += 1;
                }
                large::<R, FETCH, NT>(&rows[i..], j - i);
                i = j;
            }
        }
    }
}

macro_rules! kernels {
    ($($through:ident $fetch:ident $place:ident $near:ident $feature:literal $register:ty,)*) => {$(
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $through(rows: &[Row], count: usize) { unsafe { all::<$register, true, true>(rows, count) } }
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $fetch(rows: &[Row], count: usize) { unsafe { all::<$register, true, false>(rows, count) } }
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $place(rows: &[Row], count: usize) { unsafe { all::<$register, false, true>(rows, count) } }
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $near(rows: &[Row], count: usize) { unsafe { all::<$register, false, false>(rows, count) } }
    )*};
}
kernels! {
    through_sse2 fetch_sse2 place_sse2 near_sse2 "sse2" __m128i,
    through_avx2 fetch_avx2 place_avx2 near_avx2 "avx2" __m256i,
    through_avx512 fetch_avx512 place_avx512 near_avx512 "avx512f" __m512i,
}

pub(super) fn fence() {
    unsafe { _mm_sfence() }
}
