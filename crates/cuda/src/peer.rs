//! Copies between two GPUs of one process.
//!
//! The source gathers a piece into a dense buffer, a copy engine carries that into a buffer of the destination, over NVLink or
//! the bus, and the destination scatters it. Pieces take turns on a few *slots*, so that the kernels of one run while
//! another is carried. Everything is submitted at once: the GPUs wait for each other, and the host for the end.
//!
//! The slots of a direction are made when it is first used and kept, since giving memory back waits for all that
//! anybody has submitted to the device. Each direction has its own, and one copy at a time: two opposite copies never wait for each other.

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

/// The most bytes of one piece: NVLink carries them in some 10 us, what it takes to submit one.
const PIECE: u64 = 4 << 20;

/// How many pieces are under way at a time: 16 MiB on each GPU.
const SLOTS: usize = 4;

/// How many multiprocessors work on one piece.
const MULTIPROCESSORS: u32 = DEFAULT_MULTIPROCESSORS / SLOTS as u32;

/// What a GPU has for copies to others, by the number of the other.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<BTreeMap<u32, Arc<Mutex<Kept>>>>);

/// What there is for copies in one direction.
#[derive(Debug, Default)]
enum Kept {
    #[default]
    Nothing,
    Free(Box<Slots>),
    /// A copy that had no end in time, after so long, uses the slots still. There are no others meanwhile: each would have memory.
    Stalled(Duration),
}

#[derive(Debug)]
struct Slots([Slot; SLOTS]);

/// What one piece goes through.
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
    /// Behind the carrying on the source's side, behind the scatter on the destination's.
    done: Event,
}

/// Runs a program that was checked, between memories of two GPUs.
pub(crate) fn copy(
    program: &Program,
    source: &DeviceMemory,
    destination: &DeviceMemory,
    within: Duration,
) -> Result<(), DeviceError> {
    let from = DeviceStream::new(&program.stream(Side::Source), source)?;
    let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
    let kept = source.gpu().peers().slots(destination.gpu());
    let mut direction = lock(&kept);
    let slots = match mem::take(&mut *direction) {
        Kept::Free(slots) => slots,
        Kept::Nothing => Box::new(Slots::new(source.gpu(), destination.gpu())?),
        Kept::Stalled(within) => {
            *direction = Kept::Stalled(within);
            let ordinal = source.gpu().ordinal();
            return Err(DeviceError::Stalled { ordinal, within });
        }
    };
    let submitted = slots.submit(&from, &to);
    // What was submitted uses the buffers and the tables, whatever became of the rest.
    match slots.settle(within) {
        Ok(()) => {
            *direction = Kept::Free(slots);
            submitted
        }
        Err(lost @ DeviceError::Lost { .. }) => Err(lost),
        Err(error) => {
            *direction = Kept::Stalled(within);
            drop(direction);
            free_later(kept, slots, (from, to));
            Err(error)
        }
    }
}

/// Frees what a copy uses that has no end in time, once it has come to one after all; without a thread that waits for
/// that, never.
fn free_later(kept: Arc<Mutex<Kept>>, slots: Box<Slots>, streams: (Arc<DeviceStream>, Arc<DeviceStream>)) {
    let used = ManuallyDrop::new((slots, streams));
    let wait = move || match used.0.settle(Duration::MAX) {
        Ok(()) => *lock(&kept) = Kept::Free(ManuallyDrop::into_inner(used).0),
        Err(DeviceError::Lost { .. }) => {
            *lock(&kept) = Kept::Nothing;
            drop(ManuallyDrop::into_inner(used));
        }
        Err(_) => {}
    };
    let _ = thread::Builder::new().spawn(wait);
}

impl Peers {
    fn slots(&self, to: &Gpu) -> Arc<Mutex<Kept>> {
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

    /// Waits for all that was submitted, at most for so long. Where one device is lost that is the error, but only if the other is done.
    fn settle(&self, within: Duration) -> Result<(), DeviceError> {
        let ends = self.0.iter().flat_map(|slot| [&slot.source, &slot.destination]);
        let (mut outcome, begun) = (Ok(()), Instant::now());
        for end in ends {
            // An error of the call tells nothing of the work, and what is in doubt is never used again: so it is called twice.
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
    /// Submits a piece. What was submitted to the slot before is done first, on either side.
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

    /// Submits the way from this buffer to the other one.
    fn carry(&self, to: &Self, len: usize) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: both buffers are long enough, each is of its context, and they are kept until `settle` has waited for this.
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
