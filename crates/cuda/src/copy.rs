//! Copies in which a GPU takes part.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::arena::Table;
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::launch::{End, Ends, Launch, Launches};
use crate::mark::Mark;
use crate::memory::DeviceMemory;
use crate::peer;
use crate::pool::{Held, PIECE};
use crate::stream::DeviceStream;
use crate::threads::Told;
use transload_memory::copy::{CopyOptions, CopyReport, Crc32c, Cursor, MemoryStream};
use transload_memory::internal::settle;
use transload_memory::{Memory, Side};
use transload_plan::program::Program;

/// One side of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Memory of the host.
    Host(&'a Memory),
    /// Memory of a GPU.
    Device(&'a DeviceMemory),
}

impl<'a> From<&'a Memory> for Place<'a> {
    fn from(memory: &'a Memory) -> Self {
        Self::Host(memory)
    }
}

impl<'a> From<&'a DeviceMemory> for Place<'a> {
    fn from(memory: &'a DeviceMemory) -> Self {
        Self::Device(memory)
    }
}

/// Runs a program as [`copy`](transload_memory::copy::copy()) does, between any two memories of the host or of GPUs.
///
/// It returns when all bytes are in place. It does not wait for the engine's work: the source's bytes must be complete,
/// and nothing may still use the destination's.
///
/// On one GPU all of its multiprocessors copy. Over the bus and between two GPUs,
/// [`DEFAULT_MULTIPROCESSORS`](super::DEFAULT_MULTIPROCESSORS) gather or scatter, and a copy engine carries the bytes.
/// The first copy between two GPUs allocates 16 MiB on each, which are kept. Checksums are computed on the host, so a
/// copy from device memory to device memory has none.
///
/// # Errors
/// [`DeviceError`]. Misfits are found before the first byte is moved. After an error of the driver the destination's
/// bytes may be old or new. After [`DeviceError::Stalled`] the GPU's memory may still be read and written: its keeper
/// is kept until that ends.
///
/// ```no_run
/// use smallvec::smallvec;
/// use transload_memory::copy::CopyOptions;
/// use transload_cuda::{DeviceMemory, Gpu, copy};
/// use transload_memory::Memory;
/// use transload_plan::program::{Nest, Placed, Program};
///
/// let gpu = Gpu::open(0)?;
/// let (host, device) = (Memory::allocate(&[4096])?, DeviceMemory::allocate(&gpu, &[4096])?);
/// host.write(0, b"a cache")?;
/// let whole = Program {
///     nests: vec![Nest { loops: smallvec![], run: 4096 }],
///     placed: vec![Placed { nest: 0, src: 0, dst: 0 }],
/// };
/// let report = copy(&whole, &host, &device, &CopyOptions::default())?;
/// assert_eq!(report.bytes, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy<'a>(
    program: &Program,
    source: impl Into<Place<'a>>,
    destination: impl Into<Place<'a>>,
    options: &CopyOptions,
) -> Result<CopyReport, DeviceError> {
    run(program, (source.into(), destination.into()), options, Gpu::stall)
}

/// Runs a program as [`copy`](copy()) does, but waits for a GPU without limit: when this returns, nothing touches
/// either memory any more.
///
/// # Errors
/// Those of [`copy`](copy()), but the copy itself never ends with [`DeviceError::Stalled`].
pub fn copy_until_done<'a>(
    program: &Program,
    source: impl Into<Place<'a>>,
    destination: impl Into<Place<'a>>,
    options: &CopyOptions,
) -> Result<CopyReport, DeviceError> {
    run(program, (source.into(), destination.into()), options, |_| Duration::MAX)
}

fn run(
    program: &Program,
    sides: (Place<'_>, Place<'_>),
    options: &CopyOptions,
    within: fn(&Gpu) -> Duration,
) -> Result<CopyReport, DeviceError> {
    let checksum = match sides {
        (Place::Host(source), Place::Host(destination)) => {
            return Ok(transload_memory::copy::copy(program, source, destination, options)?);
        }
        (Place::Device(source), Place::Device(destination)) => {
            if options.checksum {
                // The bytes never pass through host memory, where they would be summed.
                return Err(DeviceError::NoSum);
            }
            source.check(program, Side::Source)?;
            destination.check(program, Side::Destination)?;
            match source.gpu().ordinal() == destination.gpu().ordinal() {
                true => within_a_gpu(program, source, destination, within(source.gpu()))?,
                false => peer::copy(program, source, destination, within(source.gpu()))?,
            }
            None
        }
        (Place::Device(source), Place::Host(destination)) => {
            source.check(program, Side::Source)?;
            destination.check(program, Side::Destination)?;
            let from = DeviceStream::new(&program.stream(Side::Source), source)?;
            let to = MemoryStream::new(program.stream(Side::Destination), destination.clone())?;
            Some(to_host(within(source.gpu()), &from, to.cursor(0)?)?)
        }
        (Place::Host(source), Place::Device(destination)) => {
            source.check(program, Side::Source)?;
            destination.check(program, Side::Destination)?;
            let from = MemoryStream::new(program.stream(Side::Source), source.clone())?;
            let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
            Some(to_device(within(destination.gpu()), from.cursor(0)?, &to)?)
        }
    };
    let checksum = checksum.filter(|_| options.checksum);
    Ok(CopyReport::by_one_thread(program, "cuda", checksum))
}

fn within_a_gpu(
    program: &Program,
    source: &DeviceMemory,
    destination: &DeviceMemory,
    within: Duration,
) -> Result<(), DeviceError> {
    let gpu = source.gpu();
    let (launches, places) = prepare(program, source, destination)?;
    let used = (places, source.clone(), destination.clone());
    let launch = |_: &_| gpu.kernels().launch(gpu.stream(), &launches, None);
    let if_late = |_, used| match Mark::behind(gpu, gpu.stream()) {
        Ok(mark) => mark.when_done(|done| match done {
            Err(error) if !error.is_lost() => mem::forget(used),
            _ => drop(used),
        }),
        // Without a mark nobody learns when the kernel ends, so the memory that it uses is never freed.
        Err(_) => mem::forget(used),
    };
    gpu.stream().run(within, used, launch, if_late).map(drop)
}

/// Returns the launches of a program that was checked against two memories of one GPU, and the table that they read.
pub(crate) fn prepare(
    program: &Program,
    source: &DeviceMemory,
    destination: &DeviceMemory,
) -> Result<(Vec<Launch>, Table), DeviceError> {
    let launches = Launches::new(program)?;
    let places = source.gpu().arena().upload(launches.places())?;
    let ends = Ends {
        places: places.address(),
        src_bases: source.bases(),
        dst: End::memory(destination.bases()),
        bases: source.alignment() | destination.alignment(),
        reverse: false,
    };
    Ok((launches.all(&ends)?, places))
}

/// The number of pieces that are requested before the first one is awaited, to hide the latency of the bus.
const AHEAD: usize = 4;

/// Gathers on the GPU piece by piece. The host scatters one piece while others cross the bus.
fn to_host(within: Duration, from: &Arc<DeviceStream>, mut to: Cursor) -> Result<Crc32c, DeviceError> {
    let mut sum = Crc32c::new();
    let mut pipeline = Pipeline::new(from.gpu(), within);
    let mut place = |(mut piece, len): (Held, usize)| to.scatter(&piece.bytes()[..len], Some(&mut sum));
    for range in pieces(0..from.bytes()) {
        let len = len(&range);
        pipeline.ask(|told| {
            from.gather(range, Box::new(move |piece| told(piece.map(|piece| (piece, len)))));
        });
        if let Some(first) = pipeline.next_if_full()? {
            place(first)?;
        }
    }
    while let Some(first) = pipeline.next()? {
        place(first)?;
    }
    settle();
    Ok(sum)
}

/// Gathers on the host piece by piece while earlier pieces cross the bus, and has the GPU scatter them.
fn to_device(within: Duration, mut from: Cursor, to: &Arc<DeviceStream>) -> Result<Crc32c, DeviceError> {
    let mut sum = Crc32c::new();
    let mut pipeline = Pipeline::new(to.gpu(), within);
    for range in pieces(0..to.bytes()) {
        let mut piece = wait(to.gpu(), within, &asked(|told| to.acquire(told)))?;
        from.gather(&mut piece.bytes()[..len(&range)], Some(&mut sum))?;
        // A finished piece is returned to the pool at once: a thread that waits for a piece must hold none.
        pipeline.ask(|told| to.scatter(piece, range, Box::new(move |piece| told(piece.map(drop)))));
        pipeline.next_if_full()?;
    }
    while pipeline.next()?.is_some() {}
    Ok(sum)
}

/// Requests to the GPU, oldest first. Dropping it waits until the GPU has finished them, up to the time limit, so that
/// after an error nothing still touches the caller's blocks.
struct Pipeline<'a, T> {
    gpu: &'a Gpu,
    within: Duration,
    asked: VecDeque<Answer<T>>,
}

impl<'a, T: Send + 'static> Pipeline<'a, T> {
    fn new(gpu: &'a Gpu, within: Duration) -> Self {
        let asked = VecDeque::new();
        Self { gpu, within, asked }
    }

    fn ask(&mut self, ask: impl FnOnce(Told<T>)) {
        self.asked.push_back(asked(ask));
    }

    fn next(&mut self) -> Result<Option<T>, DeviceError> {
        let first = self.asked.pop_front();
        first.map(|first| wait(self.gpu, self.within, &first)).transpose()
    }

    fn next_if_full(&mut self) -> Result<Option<T>, DeviceError> {
        match self.asked.len() < AHEAD {
            true => Ok(None),
            false => self.next(),
        }
    }
}

impl<T> Drop for Pipeline<'_, T> {
    fn drop(&mut self) {
        let begun = Instant::now();
        for left in self.asked.drain(..) {
            // Only the end matters here, not the outcome.
            let _ = left.recv_timeout(self.within.saturating_sub(begun.elapsed()));
        }
    }
}

pub(crate) type Answer<T> = mpsc::Receiver<Result<T, DeviceError>>;

fn asked<T: Send + 'static>(ask: impl FnOnce(Told<T>)) -> Answer<T> {
    let (tell, answer) = mpsc::channel();
    // After an earlier error nothing receives the answer.
    ask(Box::new(move |done| drop(tell.send(done))));
    answer
}

pub(crate) fn wait<T>(gpu: &Gpu, within: Duration, answer: &Answer<T>) -> Result<T, DeviceError> {
    answer.recv_timeout(within).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => gpu.context().stalled(within),
            RecvTimeoutError::Disconnected => DeviceError::ThreadGone,
        })
    })
}

pub(crate) fn pieces(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = bytes.clone().step_by(PIECE);
    starts.map(move |start| start..(start + PIECE as u64).min(bytes.end))
}

fn len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
