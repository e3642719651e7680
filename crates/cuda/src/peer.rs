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

use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::crossing::{Bytes, Way};
use crate::error::DeviceError;
use crate::launch::DEFAULT_MULTIPROCESSORS;
use crate::memory::DeviceMemory;
use crate::slots::{Direction, PIECE, SLOTS, Slot, Slots, lock};
use crate::stream::DeviceStream;
use transload_memory::Side;
use transload_plan::program::Program;

const MULTIPROCESSORS: u32 = DEFAULT_MULTIPROCESSORS / SLOTS as u32;

/// Runs a program, which was checked, between memories of two GPUs.
pub(crate) fn copy(
    program: &Program,
    source: &DeviceMemory,
    destination: &DeviceMemory,
    within: Duration,
) -> Result<(), DeviceError> {
    let from = DeviceStream::new(&program.stream(Side::Source), source)?;
    let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
    let shared = source.gpu().peers().slots(destination.gpu().ordinal());
    let mut direction = lock(&shared);
    let slots = match mem::take(&mut *direction) {
        Direction::Free(slots) => slots,
        Direction::Nothing => Box::new(Slots::new(source.gpu().context(), destination.gpu().context())?),
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

impl Slots {
    fn submit(&self, from: &DeviceStream, to: &DeviceStream) -> Result<(), DeviceError> {
        let bytes = from.bytes();
        for (number, slot) in (0..bytes.div_ceil(PIECE)).zip(self.0.iter().cycle()) {
            let start = number * PIECE;
            slot.submit(from, to, start..bytes.min(start + PIECE))?;
        }
        Ok(())
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
