//! Copies between two GPUs of one process.
//!
//! The source gathers a piece into a dense buffer, a copy engine carries it into a buffer of the destination over
//! NVLink or the bus, and the destination scatters it. Pieces take turns on a few *slots*, so that the kernels of one
//! piece run while another is carried. Everything is submitted at once: the GPUs wait for each other, and the host
//! waits for the end.
//!
//! The slots of a direction are made at its first use and kept, since freeing memory waits for all work that was
//! submitted to the device. Each direction has its own slots and runs one copy at a time, so opposite copies never wait
//! for each other.

use std::collections::BTreeMap;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::{DEFAULT_MULTIPROCESSORS, Gpu};
use crate::memory::DeviceMemory;
use crate::resources::{Buffer, Event, Stream};
use crate::stream::{DeviceStream, Way};
use transload_memory::Side;
use transload_plan::program::Program;

/// The most bytes of a piece. NVLink carries them in about 10 us, which is also the time to submit a piece.
const PIECE: u64 = 4 << 20;

/// The number of pieces in flight: 16 MiB on each GPU.
const SLOTS: usize = 4;

const MULTIPROCESSORS: u32 = DEFAULT_MULTIPROCESSORS / SLOTS as u32;

/// Slots for copies from a GPU to others, by the ordinal of the other GPU.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<BTreeMap<u32, Arc<Mutex<Direction>>>>);

#[derive(Debug, Default)]
enum Direction {
    #[default]
    Nothing,
    Free(Box<Slots>),
    /// A copy did not finish within this time and still uses the slots. No further slots are made meanwhile, to bound
    /// memory.
    Stalled(Duration),
}

#[derive(Debug)]
struct Slots([Slot; SLOTS]);

#[derive(Debug)]
struct Slot {
    source: End,
    destination: End,
}

#[derive(Debug)]
struct End {
    context: Arc<Context>,
    stream: Stream,
    buffer: Buffer,
    /// Recorded after the copy between the devices on the source's side, or after the scatter on the destination's.
    done: Event,
}

/// Runs a program, which was checked, between memories of two GPUs.
pub(crate) fn copy(
    program: &Program,
    source: &DeviceMemory,
    destination: &DeviceMemory,
    within: Duration,
) -> Result<(), DeviceError> {
    let from = DeviceStream::new(&program.stream(Side::Source), source)?;
    let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
    let shared = source.gpu().peers().slots(destination.gpu());
    let mut direction = lock(&shared);
    let slots = match mem::take(&mut *direction) {
        Direction::Free(slots) => slots,
        Direction::Nothing => Box::new(Slots::new(source.gpu(), destination.gpu())?),
        Direction::Stalled(within) => {
            *direction = Direction::Stalled(within);
            let ordinal = source.gpu().ordinal();
            return Err(DeviceError::Stalled { ordinal, within });
        }
    };
    let submitted = slots.submit(&from, &to);
    // What was submitted uses the buffers and the tables even if a later call failed.
    match slots.settle(within) {
        Ok(()) => {
            *direction = Direction::Free(slots);
            submitted
        }
        Err(lost @ DeviceError::Lost { .. }) => Err(lost),
        Err(error) => {
            *direction = Direction::Stalled(within);
            drop(direction);
            free_later(shared, slots, (from, to));
            Err(error)
        }
    }
}

/// Waits on another thread until a late copy is done, and then frees what it used. If no thread can be started, that is
/// never freed.
fn free_later(direction: Arc<Mutex<Direction>>, slots: Box<Slots>, streams: (Arc<DeviceStream>, Arc<DeviceStream>)) {
    let used = ManuallyDrop::new((slots, streams));
    let wait = move || match used.0.settle(Duration::MAX) {
        Ok(()) => *lock(&direction) = Direction::Free(ManuallyDrop::into_inner(used).0),
        Err(DeviceError::Lost { .. }) => {
            *lock(&direction) = Direction::Nothing;
            drop(ManuallyDrop::into_inner(used));
        }
        Err(_) => {}
    };
    let _ = thread::Builder::new().spawn(wait);
}

impl Peers {
    fn slots(&self, to: &Gpu) -> Arc<Mutex<Direction>> {
        lock(&self.0).entry(to.ordinal()).or_default().clone()
    }
}

impl Slots {
    fn new(source: &Gpu, destination: &Gpu) -> Result<Self, DeviceError> {
        let slot = || {
            Ok::<_, DeviceError>(Slot {
                source: End::new(source.context())?,
                destination: End::new(destination.context())?,
            })
        };
        Ok(Self([slot()?, slot()?, slot()?, slot()?]))
    }

    fn submit(&self, from: &DeviceStream, to: &DeviceStream) -> Result<(), DeviceError> {
        let bytes = from.bytes();
        for (number, slot) in (0..bytes.div_ceil(PIECE)).zip(self.0.iter().cycle()) {
            let start = number * PIECE;
            slot.submit(from, to, start..bytes.min(start + PIECE))?;
        }
        Ok(())
    }

    /// Waits until all submitted work is done, for `within` at most. Reports a lost device only if the other device is
    /// done.
    fn settle(&self, within: Duration) -> Result<(), DeviceError> {
        let ends = self.0.iter().flat_map(|slot| [&slot.source, &slot.destination]);
        let (mut outcome, begun) = (Ok(()), Instant::now());
        for end in ends {
            // A failed call does not say whether the work is done, and doubtful slots are never used again. So the call
            // is retried once.
            let wait = || end.stream.finish(within.saturating_sub(begun.elapsed()));
            let done = wait().or_else(|_| wait());
            if outcome.is_ok() || done.as_ref().is_err_and(|error| !error.is_lost()) {
                outcome = done;
            }
        }
        outcome
    }
}

impl Slot {
    /// Submits a piece behind everything that was submitted to the slot before, on both sides.
    fn submit(&self, from: &DeviceStream, to: &DeviceStream, range: Range<u64>) -> Result<(), DeviceError> {
        let Self { source, destination } = self;
        let len = (range.end - range.start) as usize;
        let gather = from.launches(Way::Gather, range.clone(), source.buffer.address)?;
        let scatter = to.launches(Way::Scatter, range, destination.buffer.address)?;
        from.gpu().kernels().launch(&source.stream, &gather, Some(MULTIPROCESSORS))?;
        source.stream.wait_for(&destination.done)?;
        source.carry(destination, len)?;
        source.done.record(&source.stream)?;
        destination.stream.wait_for(&source.done)?;
        to.gpu().kernels().launch(&destination.stream, &scatter, Some(MULTIPROCESSORS))?;
        destination.done.record(&destination.stream)
    }
}

impl End {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self {
            context: context.clone(),
            stream: Stream::new(context)?,
            buffer: Buffer::new(context, PIECE as usize)?,
            done: Event::new(context)?,
        })
    }

    fn carry(&self, to: &Self, len: usize) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: both buffers are long enough and belong to their contexts; they are kept until `settle` has waited.
        let carried = unsafe {
            driver::cuMemcpyPeerAsync(
                to.buffer.address,
                to.context.raw(),
                self.buffer.address,
                self.context.raw(),
                len,
                self.stream.raw,
            )
        };
        self.context.check("cuMemcpyPeerAsync", carried)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
