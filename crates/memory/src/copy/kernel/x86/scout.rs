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
    /// The chunk that it is in.
    src: *const u8,
    run: usize,
    stride: usize,
    /// How many chunks are left of its row, this one included; 0 behind the last row.
    chunks: usize,
    /// Bytes of the chunk that lie behind; less than `run`.
    at: usize,
}

impl<'a, const ON: bool> Scout<'a, ON> {
    /// Starts [`AHEAD`] bytes into a list of rows.
    #[inline(always)]
    pub(super) fn ahead_of(rows: &'a [Row]) -> Self {
        let mut scout = Self { rows, src: std::ptr::null(), run: 1, stride: 0, chunks: 0, at: 0 };
        if ON {
            scout.enter();
            let mut ahead = AHEAD;
            while scout.chunks > 0 {
                let skip = (ahead / scout.run).min(scout.chunks);
                ahead -= skip * scout.run;
                if skip < scout.chunks {
                    scout.chunks -= skip;
                    scout.src = scout.src.wrapping_add(skip * scout.stride);
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
        if ON { most.min((self.run - self.at).next_multiple_of(TURN)) } else { most }
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

    /// Prefetches a turn's bytes and goes on behind them.
    #[inline(always)]
    pub(super) fn turn(&mut self) {
        if ON {
            let ahead = self.position();
            for line in (0..TURN).step_by(LINE) {
                Self::prefetch(ahead.wrapping_add(line));
            }
            self.forward(TURN);
        }
    }

    /// Prefetches a short chunk and goes on to the next.
    #[inline(always)]
    pub(super) fn chunk(&mut self) {
        if ON {
            for line in (0..self.run.min(TURN)).step_by(LINE) {
                Self::prefetch(self.src.wrapping_add(line));
            }
            self.next();
        }
    }

    /// Goes on by some chunks, fetching none of them.
    pub(super) fn pass(&mut self, mut chunks: usize) {
        while ON && chunks >= self.chunks && self.chunks > 0 {
            chunks -= self.chunks;
            self.enter();
        }
        if ON && self.chunks > 0 {
            self.chunks -= chunks;
            self.src = self.src.wrapping_add(chunks * self.stride);
        }
    }

    /// Prefetches a line into the second level of the cache.
    ///
    /// Not into the first, whose few fill buffers the stores around the caches need: in chunks of
    /// 512 B 10.8 instead of 8.1. Nor without temporal locality: 6.8.
    #[inline(always)]
    pub(super) fn prefetch(src: *const u8) {
        if ON {
            // SAFETY: part of SSE, which every x86-64 has; a prefetch of any address is harmless.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) };
        }
    }

    #[inline(always)]
    fn next(&mut self) {
        self.at = 0;
        if self.chunks > 1 {
            self.chunks -= 1;
            self.src = self.src.wrapping_add(self.stride);
        } else {
            self.enter();
        }
    }

    /// Enters the next row. Behind the last one it stays where it is, with no chunks left.
    #[cold]
    #[inline(never)]
    fn enter(&mut self) {
        if let [row, rest @ ..] = self.rows {
            *self = Self { rows: rest, src: row.src, run: row.run, stride: row.src_stride, chunks: row.count, at: 0 };
        } else {
            self.chunks = 0;
        }
    }
}
