//! What of a stream lies together in memory.

use std::iter::FusedIterator;

use super::walk::Walk;
use crate::plan::program::StreamProgram;

/// Bytes that follow each other both in a stream and in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// Address of the first byte in the memory.
    pub address: u64,
    /// How many bytes.
    pub len: u64,
}

/// The runs of a range of a stream; made by [`MemoryStream::runs`](super::MemoryStream::runs).
///
/// Each is as long as it can be: it ends where the next byte of the stream is elsewhere in memory,
/// or in another allocation.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    program: &'a StreamProgram,
    walk: Walk,
    end: u64,
}

impl<'a> Runs<'a> {
    pub(super) fn new(program: &'a StreamProgram, walk: Walk, end: u64) -> Self {
        Self { program, walk, end }
    }

    /// The next part of a chunk.
    fn peek(&self) -> Option<Run> {
        let left = self.end.checked_sub(self.walk.position())?;
        let (address, len) = self.walk.chunk(self.program.program())?;
        let len = len.min(left);
        (len > 0).then_some(Run { address, len })
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut run = self.peek()?;
        self.walk.skip(self.program.program(), run.len);
        // Allocations are far apart in the space of addresses, so that no run leads from one into
        // the next.
        while let Some(next) = self.peek().filter(|n| n.address == run.address + run.len) {
            run.len += next.len;
            self.walk.skip(self.program.program(), next.len);
        }
        Some(run)
    }
}

impl FusedIterator for Runs<'_> {}
