//! Copies between two memories of one host.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::thread;

use super::checksum::Crc32c;
use super::kernel::{self, Kernel, Traffic, Tuning};
use super::walk::Walk;
use crate::{CheckError, Memory, Side};
use transload_plan::program::Program;

/// Options of a copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The most threads, the caller's included (0 counts as 1), and not more than one for each 8 MiB. `None` is
    /// 8, or as many as the machine can run at a time if those are fewer.
    pub threads: Option<usize>,
    /// Whether to sum the bytes as they pass, which costs up to 20 % of the time. False by default.
    pub checksum: bool,
    #[doc(hidden)]
    pub tuning: Tuning,
    #[doc(hidden)]
    pub bytes_per_thread: u64,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { threads: None, checksum: false, tuning: Tuning::detect(), bytes_per_thread: BYTES_PER_THREAD }
    }
}

impl CopyOptions {
    pub(super) fn threads(&self, bytes: u64, cores: impl Fn() -> usize) -> usize {
        let worth = usize::try_from(bytes / self.bytes_per_thread).unwrap_or(usize::MAX);
        let most = self.threads.map_or_else(|| cores().clamp(1, DEFAULT_THREADS), |threads| threads.max(1));
        worth.clamp(1, most)
    }

    #[cfg(test)]
    #[must_use]
    pub(super) fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.tuning.set_kernel(kernel);
        self
    }
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyReport {
    /// The number of bytes.
    pub bytes: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// The number of threads.
    pub threads: usize,
    /// The kind of instructions, for display.
    pub kernel: &'static str,
    /// The sum of the bytes in program order, if it was requested.
    pub checksum: Option<Crc32c>,
}

impl CopyReport {
    /// Makes the report of a whole program that one thread has copied, with instructions outside of this crate.
    #[doc(hidden)]
    pub fn by_one_thread(program: &Program, kernel: &'static str, checksum: Option<Crc32c>) -> Self {
        Self { bytes: program.bytes(), chunks: program.chunks(), threads: 1, kernel, checksum }
    }
}

/// The number of bytes that are worth a thread of their own.
///
/// With this many bytes each, two threads are 40 % faster than one; with half of it 10 %, and with a quarter not at
/// all.
pub(super) const BYTES_PER_THREAD: u64 = 8 << 20;

/// The most threads of a copy by default. One reaches about 10 GB/s, and the engine on the same host needs its cores.
pub(super) const DEFAULT_THREADS: usize = 8;

/// Runs a program: copies its bytes from one memory to another.
///
/// Both memories are checked first, so either everything is copied or nothing. Chunks may be copied in any order. If
/// the program writes a byte twice, or reads what it writes, the result is any of the possible ones; a program made
/// from two deployments never does that.
///
/// # Errors
/// [`CheckError`] says which place of the program needs bytes that the memory does not have.
///
/// # Example
/// This copies from a cache with the heads inside each token, `[tokens, heads, 64 B]`, into one with the tokens inside
/// each head. Only the second of two heads is copied, as when TP is doubled:
/// ```
/// use smallvec::smallvec;
/// use transload_memory::copy::{CopyOptions, copy};
/// use transload_memory::Memory;
/// use transload_plan::program::{Loop, Nest, Placed, Program};
///
/// let (tokens, head) = (16, 64);
/// let source = Memory::allocate(&[16 * 2 * 64])?;
/// let destination = Memory::allocate(&[16 * 64])?;
/// source.write(64, &[7; 64])?;
///
/// let program = Program {
///     nests: vec![Nest {
///         loops: smallvec![Loop { count: tokens, src: 2 * head, dst: head }],
///         run: head,
///     }],
///     placed: vec![Placed { nest: 0, src: head, dst: 0 }],
/// };
/// let report = copy(&program, &source, &destination, &CopyOptions::default())?;
/// assert_eq!((report.chunks, report.bytes), (16, 1024));
///
/// let mut first = [0; 64];
/// destination.read(0, &mut first)?;
/// assert_eq!(first, [7; 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy(
    program: &Program,
    source: &Memory,
    destination: &Memory,
    options: &CopyOptions,
) -> Result<CopyReport, CheckError> {
    source.check(program, Side::Source)?;
    destination.check(program, Side::Destination)?;
    let bytes = program.bytes();
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (mut tuning, mut threads) = (options.tuning, options.threads(bytes, cores));
    // Only the portable kernel is correct if source and destination overlap.
    if source.overlaps(destination) {
        (tuning.kernel, threads) = (Kernel::Portable, 1);
    }
    let job = Job { program, source, destination, tuning, bytes, checksum: options.checksum };
    let sum = job.share(threads);
    Ok(CopyReport {
        bytes,
        chunks: program.chunks(),
        threads,
        kernel: tuning.kernel.name(),
        checksum: options.checksum.then_some(sum),
    })
}

/// A copy whose program was checked against both memories.
struct Job<'a> {
    program: &'a Program,
    source: &'a Memory,
    destination: &'a Memory,
    tuning: Tuning,
    bytes: u64,
    checksum: bool,
}

impl Job<'_> {
    fn share(&self, threads: usize) -> Crc32c {
        let starts = self.starts(threads);
        let ends = starts.iter().skip(1).map(|walk| walk.position);
        let mut parts = starts.iter().zip(ends.chain([self.bytes]));
        let first = parts.next();
        thread::scope(|scope| {
            let others: Vec<_> = parts
                .map(|part| {
                    let thread = thread::Builder::new();
                    (part, thread.spawn_scoped(scope, move || self.part(part)))
                })
                .collect();
            let mut sum = first.map_or_else(Crc32c::new, |part| self.part(part));
            for (part, thread) in others {
                sum.append(&match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    // If no thread can be started, this one does the part, which takes longer.
                    Err(_) => self.part(part),
                });
            }
            sum
        })
    }

    /// Returns the start of each thread's part: a chunk, or a page of a long chunk.
    fn starts(&self, threads: usize) -> Vec<Walk> {
        let mut starts = vec![Walk::new(self.program, 0, 0, 0)];
        let share = self.bytes / threads as u64;
        let mut before = 0;
        for (place, placed) in self.program.placed.iter().enumerate() {
            let bytes = self.program.nests[placed.nest as usize].bytes();
            while starts.len() < threads && starts.len() as u64 * share < before + bytes {
                let offset = starts.len() as u64 * share - before;
                let mut walk = Walk::new(self.program, place, before, offset);
                walk.back_to(PAGE);
                starts.push(walk);
            }
            before += bytes;
        }
        starts
    }

    fn part(&self, (start, end): (&Walk, u64)) -> Crc32c {
        let (mut walk, mut sum) = (start.clone(), Crc32c::new());
        let ends = (self.source, self.destination);
        let bounds = (end, self.bytes);
        let how = (self.tuning, Traffic::Through);
        let summed = self.checksum.then_some(&mut sum);
        // SAFETY: the program was checked against both memories, whose makers vouch that they may be read and written.
        // If they overlap, the kernel is the one that may be used for that.
        unsafe { walk.run::<Memory, false>(self.program, ends, bounds, how, summed) };
        kernel::settle();
        sum
    }
}

/// The size of a page. Parts of a long run end at a multiple of it.
const PAGE: u64 = 4096;
