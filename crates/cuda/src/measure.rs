//! Measurements of a GPU: copies of this crate and plain copies of the driver, each timed.
//!
//! `transload bench gpu` uses them. Copies of this crate are compared with two kinds of the driver's copies: one copy
//! of as many contiguous bytes, which is an upper bound, and one descriptor for each chunk, which is what other
//! libraries do.

mod plain;
mod slots;

use std::ffi::CString;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use crate::arena::Table;
use crate::copy::{pieces, prepare, wait};
use crate::crossing::{AT_ONCE, Bytes, MULTIPROCESSORS, Way};
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::kernels::{Kernels, TEXTS};
use crate::launch::Launch;
use crate::mark::Mark;
use crate::memory::DeviceMemory;
use crate::piece::Piece;
use crate::pool::{Held, PIECE};
use crate::resources::{Event, Stream};
use crate::stream::DeviceStream;
use crate::threads::Told;
use transload_memory::{Access, CheckError, Side};
use transload_plan::program::Program;

pub use plain::{ChunkList, PinnedMemory};

/// Bytes that [`Meter::submit_to_host`] submits.
pub const SUBMITTED: u64 = 16 << 20;

/// Pieces that cross the bus at a time: half of a GPU's pieces, since both directions are measured at once.
const UNDER_WAY: usize = 16;

/// The time that an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Took {
    /// The time for this thread to submit the operation.
    pub submitting: Duration,
    /// The time for the GPU to do it.
    pub doing: Duration,
}

/// Measures one GPU, on streams of its own. Nothing else should use the GPU meanwhile.
#[derive(Debug)]
pub struct Meter {
    gpu: Gpu,
    stream: Stream,
    other: Stream,
    begun: Event,
    ended: Event,
    pieces: Vec<Piece>,
}

/// A program between two memories of a GPU, prepared so that it can be launched repeatedly.
#[derive(Debug)]
pub struct Relayout {
    launches: Vec<Launch>,
    _places: Table,
    _memories: [DeviceMemory; 2],
}

impl Meter {
    /// Makes the streams, events and buffers of the measurements.
    ///
    /// # Errors
    /// An error of the driver.
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
    /// [`DeviceError::OtherDevice`], or an error of [`copy`](crate::copy()).
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
    /// An error of the driver.
    pub fn relayout(&self, relayout: &Relayout) -> Result<Took, DeviceError> {
        self.time(|| {
            let kernels = self.gpu.kernels();
            kernels.launch(&self.stream, &relayout.launches, None)
        })
    }

    /// Gathers one side of a program into pinned memory, piece by piece, as for a transfer, and drops the pieces. The
    /// stream's bytes before position `begin` are left out.
    ///
    /// # Errors
    /// Those of [`copy`](crate::copy()).
    pub fn to_host(&self, program: &Program, memory: &DeviceMemory, begin: u64) -> Result<Duration, DeviceError> {
        let stream = DeviceStream::new(&program.stream(Side::Source), memory)?;
        let started = Instant::now();
        // The callback drops the piece at once, so that no piece is held while another is waited for.
        cross(&self.gpu, pieces(begin..stream.bytes()), |range, told| {
            stream.gather(range, Box::new(|piece| told(piece.map(drop))));
        })?;
        Ok(started.elapsed())
    }

    /// Scatters pieces of pinned memory to one side of a program, from position `begin` on. The pieces contain
    /// arbitrary old bytes.
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

    /// Returns the time that this thread takes to submit the first [`SUBMITTED`] bytes of one side of a program, to be
    /// gathered and carried to the host. Like the GPU's own thread, it submits several neighbouring pieces together.
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
                // SAFETY: memory of the piece and its next neighbours, all of which belong to this meter.
                unsafe { piece.fetch(&self.stream, begin, host, len)? };
                piece.submitted(&self.stream)
            });
        }
        drop(entered);
        let took = started.elapsed();
        self.settle(&self.stream)?;
        submitted.map(|()| took)
    }

    /// Returns the time between reaching a mark and having the first piece of a stream complete in pinned memory. The
    /// mark lies behind a copy of `busy_with` bytes within the GPU.
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
        // Copies that were submitted still use the memories, even if a later call failed.
        self.settle(&self.stream)?;
        took
    }

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

    /// Makes the driver load the kernels again. If `first` is set, a comment makes their texts differ from all that the
    /// driver has compiled and cached, as on a new machine.
    ///
    /// # Errors
    /// An error of the driver.
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

    /// Checks that a memory is on this GPU, because this GPU's streams work on it.
    fn check_own(&self, memory: &DeviceMemory) -> Result<(), DeviceError> {
        let (found, expected) = (memory.gpu().ordinal(), self.gpu.ordinal());
        let other = DeviceError::OtherDevice { allocation: 0, found, expected };
        if found == expected { Ok(()) } else { Err(other) }
    }

    /// Waits until a stream is done, or the device is lost, without limit: the submitted work uses the caller's memory.
    fn settle(&self, stream: &Stream) -> Result<(), DeviceError> {
        loop {
            match stream.finish(self.gpu.stall()) {
                Err(error) if !error.is_lost() => {}
                done => return done,
            }
        }
    }

    fn time(&self, submit: impl FnOnce() -> Result<(), DeviceError>) -> Result<Took, DeviceError> {
        self.begun.record(&self.stream)?;
        let started = Instant::now();
        let submitted = submit();
        let submitting = started.elapsed();
        let ended = self.ended.record(&self.stream);
        // Copies that were submitted still use the memories, even if a later call failed.
        let done = self.settle(&self.stream);
        submitted.and(ended).and(done)?;
        Ok(Took { submitting, doing: self.begun.elapsed(&self.ended)? })
    }
}

/// Requests pieces, [`UNDER_WAY`] at a time, and waits for all of them.
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
        // After an error nothing receives the answer; requests in flight keep what they use.
        ask(piece, Box::new(move |done| drop(tell.send(done))));
        under_way += 1;
    }
    (0..under_way).try_for_each(|_| wait(gpu, gpu.stall(), &told))
}

fn first(memory: &DeviceMemory, bytes: u64, access: Access) -> Result<u64, DeviceError> {
    if access == Access::ReadWrite && memory.access() == Access::Read {
        return Err(CheckError::ReadOnly.into());
    }
    match memory.allocation(0) {
        Some((address, len)) if bytes <= len => Ok(address),
        Some((_, len)) => Err(too_short(bytes, len)),
        None => Err(too_short(bytes, 0)),
    }
}

fn too_short(len: u64, available: u64) -> DeviceError {
    DeviceError::PastEnd { allocation: 0, len, available }
}
