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
use crate::queue::Told;
use crate::stream::DeviceStream;
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

/// Runs a program as [`copy`](transload_memory::copy::copy()) does, from and to memory of the host or of GPUs.
///
/// It returns when all bytes are in their place, and waits for no work of the engine: what the source holds has to be
/// complete, and nobody may still use what is overwritten. On one GPU all of its multiprocessors copy; over the
/// bus, and between two GPUs, [`DEFAULT_MULTIPROCESSORS`](super::DEFAULT_MULTIPROCESSORS) gather or scatter, and a copy engine carries. A
/// GPU takes 16 MiB for copies to another one, or from one, when the first is made, and keeps them. Bytes are summed on the host, so
/// there is no sum of a copy from device memory to device memory.
///
/// # Errors
/// [`DeviceError`]. What does not fit is found before the first byte is moved; after an error of the driver the
/// destination's bytes may be old or new. After [`DeviceError::Stalled`] the memory of the GPU may still be read and written: its
/// keeper stays until that is over.
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

/// Runs a program as [`copy`](copy()) does, and waits however long a GPU takes: when this returns, nothing touches either memory
/// any more.
///
/// # Errors
/// Those of [`copy`](copy()), but never [`DeviceError::Stalled`] of the copy itself.
pub fn copy_until_done<'a>(
    program: &Program,
    source: impl Into<Place<'a>>,
    destination: impl Into<Place<'a>>,
    options: &CopyOptions,
) -> Result<CopyReport, DeviceError> {
    run(program, (source.into(), destination.into()), options, |_| Duration::MAX)
}

/// Runs a program, and waits at most as long as `within` says for a GPU.
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
    let late = |_, used| match Mark::behind(gpu, gpu.stream()) {
        Ok(mark) => mark.when_done(|done| match done {
            Err(error) if !error.is_lost() => mem::forget(used),
            _ => drop(used),
        }),
        // As above: nobody will know when the kernel ends, so its memory is never freed.
        Err(_) => mem::forget(used),
    };
    gpu.stream().run(within, used, launch, late).map(drop)
}

/// The launches of a program that was checked against two memories of a GPU, and the table that they read.
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

/// How many pieces are asked for before the first is there: what hides the way over the bus.
const AHEAD: usize = 4;

/// Gathers pieces, and has the host scatter one while others cross the bus.
fn to_host(within: Duration, from: &Arc<DeviceStream>, mut to: Cursor) -> Result<Crc32c, DeviceError> {
    let mut sum = Crc32c::new();
    let mut ahead = Ahead::new(from.gpu(), within);
    let mut place = |(mut piece, len): (Held, usize)| to.scatter(&piece.bytes()[..len], Some(&mut sum));
    for range in pieces(0..from.bytes()) {
        let len = len(&range);
        ahead.ask(|told| {
            from.gather(range, Box::new(move |piece| told(piece.map(|piece| (piece, len)))));
        });
        if let Some(first) = ahead.next_if_full()? {
            place(first)?;
        }
    }
    while let Some(first) = ahead.next()? {
        place(first)?;
    }
    settle();
    Ok(sum)
}

/// Has the host gather one piece while others cross the bus, and scatters them.
fn to_device(within: Duration, mut from: Cursor, to: &Arc<DeviceStream>) -> Result<Crc32c, DeviceError> {
    let mut sum = Crc32c::new();
    let mut ahead = Ahead::new(to.gpu(), within);
    for range in pieces(0..to.bytes()) {
        let mut piece = wait(to.gpu(), within, &asked(|told| to.acquire(told)))?;
        from.gather(&mut piece.bytes()[..len(&range)], Some(&mut sum))?;
        // What is done gives its piece back at once: whoever waits for one must hold none.
        ahead.ask(|told| to.scatter(piece, range, Box::new(move |piece| told(piece.map(drop)))));
        ahead.next_if_full()?;
    }
    while ahead.next()?.is_some() {}
    Ok(sum)
}

/// What the GPU was asked to do, in the order in which it was asked. Dropping it waits until the GPU has done all of it, if that
/// has an end: an error must not leave anything behind that still touches somebody's blocks.
struct Ahead<'a, T> {
    gpu: &'a Gpu,
    within: Duration,
    asked: VecDeque<Answer<T>>,
}

impl<'a, T: Send + 'static> Ahead<'a, T> {
    fn new(gpu: &'a Gpu, within: Duration) -> Self {
        let asked = VecDeque::new();
        Self { gpu, within, asked }
    }

    fn ask(&mut self, ask: impl FnOnce(Told<T>)) {
        self.asked.push_back(asked(ask));
    }

    /// Waits for the first; `None` where there is none.
    fn next(&mut self) -> Result<Option<T>, DeviceError> {
        let first = self.asked.pop_front();
        first.map(|first| wait(self.gpu, self.within, &first)).transpose()
    }

    /// The same, if there are as many as there may be.
    fn next_if_full(&mut self) -> Result<Option<T>, DeviceError> {
        match self.asked.len() < AHEAD {
            true => Ok(None),
            false => self.next(),
        }
    }
}

impl<T> Drop for Ahead<'_, T> {
    fn drop(&mut self) {
        let begun = Instant::now();
        for left in self.asked.drain(..) {
            // Whatever became of it.
            let _ = left.recv_timeout(self.within.saturating_sub(begun.elapsed()));
        }
    }
}

pub(crate) type Answer<T> = mpsc::Receiver<Result<T, DeviceError>>;

fn asked<T: Send + 'static>(ask: impl FnOnce(Told<T>)) -> Answer<T> {
    let (tell, answer) = mpsc::channel();
    // Nobody waits for the answer where an error came first.
    ask(Box::new(move |done| drop(tell.send(done))));
    answer
}

/// Waits for an answer of a GPU's threads, at most for so long.
pub(crate) fn wait<T>(gpu: &Gpu, within: Duration, answer: &Answer<T>) -> Result<T, DeviceError> {
    answer.recv_timeout(within).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => gpu.context().stalled(within),
            RecvTimeoutError::Disconnected => DeviceError::ThreadGone,
        })
    })
}

/// Cuts a stream.
pub(crate) fn pieces(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = bytes.clone().step_by(PIECE);
    starts.map(move |start| start..(start + PIECE as u64).min(bytes.end))
}

fn len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
