//! Prefetching what comes next, in program order.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::super::Row;
use super::register::{LINE, TURN};

/// How many bytes the scout is ahead.
///
/// Anything from 4 to 16 KiB does: long enough for the memory's latency, short enough that what was
/// fetched is still in the second level of the cache when its turn comes.
const AHEAD: usize = 8192;

/// Goes [`AHEAD`] bytes ahead of a copy, at its pace, and prefetches; unless it is not `ON`, for
/// bytes that were written just now, and does nothing at all.
pub(super) struct Scout<'a, const ON: bool> {
    /// The rows that it has yet to enter.
    rows: &'a [Row],
    /// The chunk that it is in. Behind the last row it stays where it is, with a stride of 0.
    src: *const u8,
    run: usize,
    stride: usize,
    /// How many chunks are left of its row, this one included.
    chunks: usize,
    /// Bytes of the chunk that lie behind; less than `run`.
    at: usize,
}

impl<'a, const ON: bool> Scout<'a, ON> {
    /// Starts [`AHEAD`] bytes into a list of rows.
    #[inline(always)]
    pub(super) fn ahead_of(rows: &'a [Row]) -> Self {
        let mut scout = Self {
            rows,
            src: std::ptr::null(),
            run: 1,
            stride: 0,
            chunks: 0,
            at: 0,
        };
        if ON {
            scout.enter();
            let mut ahead = AHEAD;
            while scout.chunks > 0 {
                let skip = (ahead / scout.run).min(scout.chunks);
                ahead -= skip * scout.run;
                scout.chunks -= skip;
                scout.src = scout.src.wrapping_add(skip * scout.stride);
                if scout.chunks > 0 {
                    scout.at = ahead / TURN * TURN;
                    break;
                }
                scout.enter();
            }
        }
        scout
    }

    /// Where it is.
    #[inline(always)]
    pub(super) fn position(&self) -> *const u8 {
        self.src.wrapping_add(self.at)
    }

    /// How many bytes it can go straight on, in whole turns, at most `most`. The last turn of a
    /// chunk may be a short one.
    #[inline(always)]
    pub(super) fn straight(&self, most: usize) -> usize {
        if ON {
            most.min((self.run - self.at).next_multiple_of(TURN))
        } else {
            most
        }
    }

    /// Goes on so far, and into the next chunk at the end of this one.
    #[inline(always)]
    pub(super) fn forward(&mut self, bytes: usize) {
        if ON {
            self.at += bytes;
            if self.at >= self.run {
                self.next();
            }
        }
    }

    /// Prefetches a short chunk and goes on to the next.
    #[inline(always)]
    pub(super) fn chunk(&mut self) {
        if ON {
            let mut at = 0;
            while at < self.run.min(TURN) {
                fetch(self.src.wrapping_add(at));
                at += LINE;
            }
            self.next();
        }
    }

    /// Prefetches a turn's bytes.
    #[inline(always)]
    pub(super) fn prefetch(src: *const u8) {
        if ON {
            for line in 0..TURN / LINE {
                fetch(src.wrapping_add(line * LINE));
            }
        }
    }

    #[inline(always)]
    fn next(&mut self) {
        self.at = 0;
        self.src = self.src.wrapping_add(self.stride);
        self.chunks = self.chunks.wrapping_sub(1);
        if self.chunks == 0 {
            self.enter();
        }
    }

    #[cold]
    #[inline(never)]
    fn enter(&mut self) {
        if let [row, rest @ ..] = self.rows {
            self.rows = rest;
            self.src = row.src;
            self.run = row.run;
            self.stride = row.src_stride;
            self.chunks = row.count;
        } else {
            self.stride = 0;
        }
    }
}

/// Prefetches a line into the second level of the cache.
///
/// Not into the first, whose few fill buffers the stores around the caches need: 10.8 GB/s instead
/// of 8.1 in chunks of 512 B. Not without temporal locality either (6.8).
#[inline(always)]
fn fetch(src: *const u8) {
    // SAFETY: part of SSE, which every x86-64 has; a prefetch of any address is harmless.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) };
}
