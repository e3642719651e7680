//! A memory as a stream of bytes: gather and scatter at arbitrary cut points.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use super::checksum::Crc32c;
use super::kernel::{self, Kernel, Mover, Traffic};
use super::walk::{Dense, Source, Walk, run};
use crate::memory::{Access, AccessError, CheckError, Loan, Memory, Side};
use crate::plan::program::{Program, StreamProgram};

/// A memory, seen as a stream.
#[derive(Clone, Debug)]
pub struct MemoryStream {
    program: Arc<StreamProgram>,
    memory: Memory,
    gather: Mover,
    scatter: Mover,
}

/// Error.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// Past.
    #[error("{len} bytes at offset {offset} of a stream of {bytes} bytes")]
    PastEnd {
        /// o
        offset: u64,
        /// l
        len: u64,
        /// b
        bytes: u64,
    },
    /// ro
    #[error("the memory may only be read")]
    ReadOnly,
}

impl MemoryStream {
    /// new
    pub fn new(program: impl Into<Arc<StreamProgram>>, memory: Memory) -> Result<Self, CheckError> {
        Self::with_kernel(program, memory, Kernel::detect())
    }
    /// new
    #[doc(hidden)]
    pub fn with_kernel(
        program: impl Into<Arc<StreamProgram>>,
        memory: Memory,
        kernel: Kernel,
    ) -> Result<Self, CheckError> {
        let program = program.into();
        memory.check(program.program(), Side::Source)?;
        Ok(Self {
            gather: Traffic::Fetch.mover(kernel),
            scatter: Traffic::Place.mover(kernel),
            program,
            memory,
        })
    }
    /// b
    pub fn bytes(&self) -> u64 {
        self.program.bytes()
    }
    fn program(&self) -> &Program {
        self.program.program()
    }
    /// c
    pub fn cursor(&self, position: u64) -> Result<Cursor, StreamError> {
        Ok(Cursor {
            walk: self.walk(position),
            stream: self.clone(),
            sum: None,
        })
    }
    fn walk(&self, position: u64) -> Walk {
        let placed = &self.program().placed;
        let place = placed
            .partition_point(|p| p.dst <= position)
            .saturating_sub(1);
        let start = placed.get(place).map_or(0, |p| p.dst);
        if position == self.bytes() {
            return Walk::at_place(self.program(), placed.len(), position);
        }
        Walk::inside_place(self.program(), place, start, position - start)
    }
}

/// c
#[derive(Debug)]
pub struct Cursor {
    stream: MemoryStream,
    walk: Walk,
    sum: Option<Crc32c>,
}
/// r
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// a
    pub address: u64,
    /// b
    pub bytes: u64,
}
/// r
pub struct Runs {}

impl Cursor {
    /// s
    pub fn summing(mut self) -> Self {
        self.sum = Some(Crc32c::new());
        self
    }
    /// g
    fn gather0(&mut self, out: &mut [u8]) -> Result<(), StreamError> {
        let total = self.stream.bytes();
        let block = if self.sum.is_some() {
            16384
        } else {
            usize::MAX
        };
        for out in out.chunks_mut(block) {
            let position = self.walk.position();
            let end = position + out.len() as u64;
            let dense = Dense {
                start: out.as_mut_ptr(),
                position,
            };
            unsafe {
                run(
                    self.stream.program.program(),
                    &mut self.walk,
                    (&Source(&self.stream.memory), &dense),
                    (end, total),
                    self.stream.gather,
                );
            }
            if let Some(sum) = &mut self.sum {
                sum.update(out)
            }
        }
        Ok(())
    }
    /// g
    fn scatter0(&mut self, bytes: &[u8], fence: bool) -> Result<(), StreamError> {
        let total = self.stream.bytes();
        let position = self.walk.position();
        let end = position + bytes.len() as u64;
        let dense = Dense {
            start: bytes.as_ptr().cast_mut(),
            position,
        };
        unsafe {
            super::walk::run(
                self.stream.program.program(),
                &mut self.walk,
                (&dense, &Source(&self.stream.memory)),
                (end, total),
                self.stream.scatter,
            );
        }
        if let Some(sum) = &mut self.sum {
            sum.update(bytes)
        }
        if fence {
            kernel::fence()
        }
        Ok(())
    }
}
impl Cursor {
    /// r
    pub fn run_bytes(&self) -> u64 {
        self.run().map_or(0, |r| r.1)
    }
    /// r
    pub fn run(&self) -> Option<(u64, u64)> {
        self.walk.chunk(self.stream.program.program())
    }
    /// s
    pub fn skip(&mut self, bytes: u64) {
        self.walk.skip(self.stream.program.program(), bytes)
    }
}
impl Cursor {
    /// r
    pub unsafe fn gather_raw(
        &mut self,
        out: *mut u8,
        len: usize,
        sum: &mut Crc32c,
    ) -> Result<(), StreamError> {
        let mut done = 0;
        while done < len {
            let step = (len - done).min(16384);
            let s = unsafe { std::slice::from_raw_parts_mut(out.add(done), step) };
            self.gather0(s)?;
            sum.update(s);
            done += step;
        }
        Ok(())
    }
    /// r
    pub unsafe fn scatter_raw(
        &mut self,
        out: *const u8,
        len: usize,
        sum: &mut Crc32c,
    ) -> Result<(), StreamError> {
        let mut done = 0;
        while done < len {
            let step = (len - done).min(16384);
            let s = unsafe { std::slice::from_raw_parts(out.add(done), step) };
            sum.update(s);
            self.scatter0(s, false)?;
            done += step;
        }
        Ok(())
    }
}

impl Cursor {
    /// g
    pub fn gather(&mut self, out: &mut [u8], sum: &mut Crc32c) -> Result<(), StreamError> {
        unsafe { self.gather_raw(out.as_mut_ptr(), out.len(), sum) }
    }
    /// g
    pub fn scatter(&mut self, out: &[u8], sum: &mut Crc32c) -> Result<(), StreamError> {
        unsafe { self.scatter_raw(out.as_ptr(), out.len(), sum) }
    }
}
