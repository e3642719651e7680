//! What a GPU reaches: copies of this crate and plain copies of the driver, each timed.
//!
//! `transload bench gpu` is made of it. The driver's copies are what the others are held against: one copy of as many
//! contiguous bytes, which is a ceiling, and one descriptor for each chunk, which is what others do.

mod plain;
mod slots;

use std::ffi::CString;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use crate::arena::Table;
use crate::copy::{pieces, prepare, wait};
use crate::crossing::{AT_ONCE, MULTIPROCESSORS};
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::{Gpu, Kernels, TEXTS};
use crate::launch::Launch;
use crate::mark::Mark;
use crate::memory::DeviceMemory;
use crate::pool::{Held, PIECE};
use crate::queue::Told;
use crate::resources::{Event, Stream};
use crate::staging::Piece;
use crate::stream::{DeviceStream, Way};
use transload_memory::{Access, Side};
use transload_plan::program::Program;

use plain::first;
pub use plain::{ChunkList, PinnedMemory};

/// Bytes that [`Meter::submit_to_host`] submits.
pub const SUBMITTED: u64 = 16 << 20;

/// How many pieces cross the bus at a time: half of those that a GPU has, since both directions are measured at once.
const UNDER_WAY: usize = 16;

/// How long something took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Took {
    /// This thread, to submit it.
    pub submitting: Duration,
    /// The GPU, to do it.
    pub doing: Duration,
}

/// Measures what one GPU does, on streams of its own. Nothing else should use the GPU meanwhile.
#[derive(Debug)]
pub struct Meter {
    gpu: Gpu,
    stream: Stream,
    other: Stream,
    begun: Event,
    ended: Event,
    pieces: Vec<Piece>,
}

/// A program between two memories of a GPU, ready to be launched any number of times.
#[derive(Debug)]
pub struct Relayout {
    launches: Vec<Launch>,
    _places: Table,
    _memories: [DeviceMemory; 2],
}

impl Meter {
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self, DeviceError> {
        let context = gpu.context();
        let pieces = Piece::several(context, SUBMITTED as usize / PIECE, PIECE)?;
        Ok(Self {
            gpu: gpu.clone(),
            stream: Stream::new(context)?,
            other: Stream::new(context)?,
            begun: Event::timed(context)?,
            ended: Event::timed(context)?,
            pieces,
        })
    }

    /// Lays a program over two memories of this GPU.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`], or as of [`copy`](crate::copy()).
    pub fn prepare(
        &self,
        program: &Program,
        source: &DeviceMemory,
        destination: &DeviceMemory,
    ) -> Result<Relayout, DeviceError> {
        source.check(program, Side::Source)?;
        destination.check(program, Side::Destination)?;
        self.check_own(source)?;
        self.check_own(destination)?;
        let (launches, places) = prepare(program, source, destination)?;
        Ok(Relayout { launches, _places: places, _memories: [source.clone(), destination.clone()] })
    }

    /// Runs a program within the GPU, with all of its multiprocessors.
    ///
    /// # Errors
    /// What the driver says.
    pub fn relayout(&self, relayout: &Relayout) -> Result<Took, DeviceError> {
        self.time(|| {
            let kernels = self.gpu.kernels();
            kernels.launch(&self.stream, &relayout.launches, None)
        })
    }

    /// Gathers one side of a program into pinned memory, piece by piece, as for a transfer, and drops the pieces. The stream's bytes
    /// before position `begin` stay where they are.
    ///
    /// # Errors
    /// Those of [`copy`](crate::copy()).
    pub fn to_host(&self, program: &Program, memory: &DeviceMemory, begin: u64) -> Result<Duration, DeviceError> {
        let stream = DeviceStream::new(&program.stream(Side::Source), memory)?;
        let started = Instant::now();
        // A piece is dropped where it is told, so that nobody holds one while another is waited for.
        cross(&self.gpu, pieces(begin..stream.bytes()), |range, told| {
            stream.gather(range, Box::new(|piece| told(piece.map(drop))));
        })?;
        Ok(started.elapsed())
    }

    /// Scatters pieces of pinned memory to one side of a program, likewise. What is in them is old bytes of others.
    ///
    /// # Errors
    /// Those of [`copy`](crate::copy()).
    pub fn to_device(&self, program: &Program, memory: &DeviceMemory, begin: u64) -> Result<Duration, DeviceError> {
        let stream = DeviceStream::new(&program.stream(Side::Destination), memory)?;
        let started = Instant::now();
        cross(&self.gpu, pieces(begin..stream.bytes()), |range, told| {
            let to = stream.clone();
            stream.acquire(Box::new(move |piece| match piece {
                Ok(piece) => to.scatter(piece, range, Box::new(|piece| told(piece.map(drop)))),
                Err(error) => told(Err(error)),
            }));
        })?;
        Ok(started.elapsed())
    }

    /// How long this thread takes to submit the first [`SUBMITTED`] bytes of one side of a program, to be gathered and carried to the host: as
    /// the thread of the GPU does it, some neighbours at a time.
    ///
    /// # Errors
    /// Those of [`copy`](crate::copy()).
    pub fn submit_to_host(&mut self, program: &Program, memory: &DeviceMemory) -> Result<Duration, DeviceError> {
        self.check_own(memory)?;
        let stream = DeviceStream::new(&program.stream(Side::Source), memory)?;
        let started = Instant::now();
        let entered = self.gpu.context().enter();
        let mut submitted = Ok(());
        for (piece, begin) in self.pieces.iter_mut().zip(0..).step_by(AT_ONCE / PIECE) {
            submitted = submitted.and_then(|()| {
                let begin = begin * PIECE as u64;
                let end = stream.bytes().min(begin + AT_ONCE as u64);
                if begin >= end {
                    return Ok(());
                }
                let len = (end - begin) as usize;
                let buffer = piece.device_at(begin);
                let launches = stream.launches(Way::Gather, begin..end, buffer)?;
                self.gpu.kernels().launch(&self.stream, &launches, Some(MULTIPROCESSORS))?;
                let host = piece.host();
                // SAFETY: memory of the piece and its next neighbours, which are all this has.
                unsafe { piece.fetch(&self.stream, begin, host, len)? };
                piece.submitted(&self.stream)
            });
        }
        drop(entered);
        let took = started.elapsed();
        self.settle(&self.stream)?;
        submitted.map(|()| took)
    }

    /// From the moment when a mark is come to, which lies behind a copy within the GPU, until the first piece of a stream is whole in pinned
    /// memory.
    ///
    /// # Errors
    /// Those of [`copy`](crate::copy()).
    pub fn mark_to_piece(
        &self,
        program: &Program,
        memory: &DeviceMemory,
        [from, to]: [&DeviceMemory; 2],
        busy_with: u64,
    ) -> Result<Duration, DeviceError> {
        let stream = DeviceStream::new(&program.stream(Side::Source), memory)?;
        let from = first(from, busy_with, Access::Read)?;
        let to = first(to, busy_with, Access::ReadWrite)?;
        let event = Event::new(self.gpu.context())?;
        let copy = || {
            let _entered = self.gpu.context().enter()?;
            // SAFETY: both are that long, and are waited for below.
            let copied = unsafe { driver::cuMemcpyDtoDAsync_v2(to, from, busy_with as usize, self.stream.raw) };
            self.gpu.context().check("cuMemcpyDtoDAsync_v2", copied)
        };
        let took = copy().and_then(|()| self.piece_after(&event, &stream));
        // What was submitted uses the memories, whatever became of the rest.
        self.settle(&self.stream)?;
        took
    }

    /// Marks the place that the stream has come to, and asks for a piece behind it.
    fn piece_after(&self, event: &Event, stream: &Arc<DeviceStream>) -> Result<Duration, DeviceError> {
        event.record(&self.stream)?;
        let mark = Mark::behind(&self.gpu, &self.stream)?;
        let (tell, told) = mpsc::channel();
        let told_at = move |piece: Result<Held, DeviceError>| {
            drop(tell.send(piece.map(|_| Instant::now())));
        };
        let (range, stream) = (0..stream.bytes().min(PIECE as u64), stream.clone());
        mark.when_done(move |done| match done {
            Ok(()) => stream.gather(range, Box::new(told_at)),
            Err(error) => told_at(Err(error)),
        });
        let entered = self.gpu.context().enter()?;
        let asked = Instant::now();
        while !event.is_done(&entered)? {
            if asked.elapsed() > self.gpu.stall() {
                return Err(self.gpu.context().stalled(self.gpu.stall()));
            }
            std::hint::spin_loop();
        }
        let reached = Instant::now();
        let whole = wait(&self.gpu, self.gpu.stall(), &told)?;
        Ok(whole.saturating_duration_since(reached))
    }

    /// Has the driver load the kernels once more. Where it is to be as on the first day, a comment makes their texts others than
    /// any that the driver has compiled and kept.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load_kernels(&self, first: bool) -> Result<Duration, DeviceError> {
        let comment = match first {
            true => format!("\n// {:?}\n", SystemTime::now()),
            false => String::new(),
        };
        let [walk, sum] = TEXTS.map(|text| {
            let text = [text.to_bytes(), comment.as_bytes()].concat();
            CString::new(text).unwrap_or_default()
        });
        let started = Instant::now();
        let (gpu, texts) = (&self.gpu, [&*walk, &*sum]);
        let kernels = Kernels::load(gpu.context(), texts, &self.stream, gpu.stall())?;
        let took = started.elapsed();
        drop(kernels);
        Ok(took)
    }

    /// Proves that a memory is of this GPU, where its streams work on it.
    fn check_own(&self, memory: &DeviceMemory) -> Result<(), DeviceError> {
        let (found, expected) = (memory.gpu().ordinal(), self.gpu.ordinal());
        let other = DeviceError::OtherDevice { allocation: 0, found, expected };
        if found == expected { Ok(()) } else { Err(other) }
    }

    /// Waits until a stream is done, or the device is lost, however long that takes: what was submitted uses the caller's memory.
    fn settle(&self, stream: &Stream) -> Result<(), DeviceError> {
        loop {
            match stream.finish(self.gpu.stall()) {
                Err(error) if !error.is_lost() => {}
                done => return done,
            }
        }
    }

    /// Times what is submitted to the stream, and waits for it.
    fn time(&self, submit: impl FnOnce() -> Result<(), DeviceError>) -> Result<Took, DeviceError> {
        self.begun.record(&self.stream)?;
        let started = Instant::now();
        let submitted = submit();
        let submitting = started.elapsed();
        let ended = self.ended.record(&self.stream);
        // What was submitted uses the memories, whatever became of the rest.
        let done = self.settle(&self.stream);
        submitted.and(ended).and(done)?;
        Ok(Took { submitting, doing: self.begun.elapsed(&self.ended)? })
    }
}

/// Has pieces cross the bus, so many at a time, and waits for all.
fn cross(
    gpu: &Gpu,
    pieces: impl Iterator<Item = Range<u64>>,
    mut ask: impl FnMut(Range<u64>, Told<()>),
) -> Result<(), DeviceError> {
    let (tell, told) = mpsc::channel();
    let mut under_way = 0;
    for piece in pieces {
        if under_way == UNDER_WAY {
            wait(gpu, gpu.stall(), &told)?;
            under_way -= 1;
        }
        let tell = tell.clone();
        // Nobody listens any more where an error came first; what is under way keeps what it uses.
        ask(piece, Box::new(move |done| drop(tell.send(done))));
        under_way += 1;
    }
    (0..under_way).try_for_each(|_| wait(gpu, gpu.stall(), &told))
}
