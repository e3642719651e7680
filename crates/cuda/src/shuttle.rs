//! Slots of shared memory that caches are gathered into, or scattered from, and summed, all on the GPU.

use std::mem;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::DeviceError;
use crate::gpu::{DEFAULT_MULTIPROCESSORS, Gpu};
use crate::queue::Told;
use crate::resources::{Event, Pinned, Stream};
use crate::shared::SharedAllocation;
use crate::stream::{DeviceStream, Way};
use crate::sum::{FOLDED, Folding, LONGEST};
use transload_memory::copy::Crc32c;

/// How often it is looked whether all is done that a ring was given, before its memory is given back.
const LOOK: Duration = Duration::from_millis(1);

/// How many rings a process makes on a GPU, 240 MiB: whoever has a certificate chooses how many agents it runs, and the memory is
/// the engine's.
const MOST_RINGS: usize = 10;

/// How many slots there are, and how many bytes each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    pub count: u32,
    pub bytes: u32,
}

impl Slots {
    /// What a ring of ours has. In slots of 4 MiB the kernel that sums is predicted to be as fast as it gets. A slot is gathered and summed in
    /// 24 us, and as long on the other side; until it is free again threads are woken for some 80 us more. So six slots could carry 200 GB/s,
    /// and the kernels, at 170, are the bound; four could carry 135. These 24 MiB, and what a [`Gpu`] keeps, are 92 MiB.
    pub const OF_A_RING: Self = Self { count: 6, bytes: 4 << 20 };

    fn total(self) -> u64 {
        u64::from(self.count) * u64::from(self.bytes)
    }
}

/// Some bytes of a stream, which lie somewhere in a slot.
pub struct Moved {
    pub stream: Arc<DeviceStream>,
    pub range: Range<u64>,
    pub at: u32,
}

/// One end of a ring in device memory. Operations are done in the order in which they were submitted.
#[derive(Debug)]
pub struct Shuttle {
    gpu: Gpu,
    stream: Arc<Stream>,
    slots: Vec<Arc<Slot>>,
    /// One of those that this process has made.
    counted: Option<Arc<()>>,
}

/// What an operation uses, which is kept until it is done.
#[derive(Debug)]
struct Slot {
    _memory: Arc<SharedAllocation>,
    address: u64,
    bytes: u32,
    /// Where the kernel writes a folded text; the host reads it when that is done.
    folded: Pinned,
    done: Arc<Event>,
}

impl Drop for Shuttle {
    /// Gives the memory back on a thread of its own, once all that was submitted is done: the driver waits for the device then, and
    /// whoever drops this has other peers to serve.
    fn drop(&mut self) {
        let (slots, stream) = (mem::take(&mut self.slots), self.stream.clone());
        let (gpu, counted) = (self.gpu.clone(), self.counted.take());
        let give_back = move || {
            while slots.iter().any(|slot| Arc::strong_count(slot) > 1) {
                thread::sleep(LOOK);
            }
            drop((slots, stream, gpu, counted));
        };
        // Without a thread it is given back here, as the closure goes.
        let _ = thread::Builder::new().spawn(give_back);
    }
}

impl Shuttle {
    /// Makes the memory, and a descriptor for the other end.
    ///
    /// # Errors
    /// [`DeviceError::TooManyRings`], or what the driver says.
    pub fn create(gpu: &Gpu, slots: Slots) -> Result<(Self, OwnedFd), DeviceError> {
        gpu.check_rings(MOST_RINGS)?;
        let (memory, descriptor) = SharedAllocation::create(gpu.context(), slots.total())?;
        let mut made = Self::new(gpu, slots, memory)?;
        made.counted = Some(gpu.rings());
        Ok((made, descriptor))
    }

    /// Maps memory that somebody else has made.
    ///
    /// # Errors
    /// Whatever is not shared memory of this GPU, and long enough.
    pub fn import(gpu: &Gpu, slots: Slots, descriptor: BorrowedFd<'_>) -> Result<Self, DeviceError> {
        let memory = SharedAllocation::import(gpu.context(), descriptor, slots.total())?;
        Self::new(gpu, slots, memory)
    }

    fn new(gpu: &Gpu, slots: Slots, memory: SharedAllocation) -> Result<Self, DeviceError> {
        let (context, memory) = (gpu.context(), Arc::new(memory));
        let slot = |number: u32| {
            Ok(Arc::new(Slot {
                address: memory.address() + u64::from(number) * u64::from(slots.bytes),
                _memory: memory.clone(),
                bytes: slots.bytes,
                folded: Pinned::new(context, FOLDED)?,
                done: Arc::new(Event::new(context)?),
            }))
        };
        let slots: Result<_, DeviceError> = (0..slots.count).map(slot).collect();
        Ok(Self { gpu: gpu.clone(), stream: Arc::new(Stream::new(context)?), slots: slots?, counted: None })
    }

    /// Gathers bytes into a slot and sums its first `len` bytes. `told` gets the sum; until then the caller gives the slot to no other
    /// operation.
    pub fn gather(&self, slot: usize, moved: &[Moved], len: u32, told: Told<Crc32c>) {
        self.submit(slot, moved, len, Way::Gather, told);
    }

    /// Sums the first `len` bytes of a slot, and then scatters them, likewise.
    pub fn scatter(&self, slot: usize, moved: &[Moved], len: u32, told: Told<Crc32c>) {
        self.submit(slot, moved, len, Way::Scatter, told);
    }

    fn submit(&self, slot: usize, moved: &[Moved], len: u32, way: Way, told: Told<Crc32c>) {
        let slot = self.slots[slot].clone();
        let folding = Folding::of(len);
        let streams: Vec<_> = moved.iter().map(|moved| moved.stream.clone()).collect();
        let done = slot.done.clone();
        let keeps = (slot.clone(), streams);
        let finish = move |result: Result<(), DeviceError>| {
            let (slot, _streams) = keeps;
            // SAFETY: the kernel has written that many bytes, and is done; nobody else writes them.
            let folded = || unsafe { std::slice::from_raw_parts(slot.folded.start.as_ptr(), folding.folded()) };
            let summed = result.map(|()| folding.sum(folded()));
            // Whoever hears of it may be about to give the ring back.
            drop((slot, _streams));
            told(summed);
        };
        let submitted = self.launch(&slot, moved, folding, len, way);
        // What was submitted of it may still use all of this, whatever has failed.
        let ended = move |ended| finish(submitted.and(ended));
        let queue = self.gpu.queue();
        queue.watch_behind(&self.stream, done, Box::new(ended));
    }

    fn launch(&self, slot: &Slot, moved: &[Moved], folding: Folding, len: u32, way: Way) -> Result<(), DeviceError> {
        assert!(len <= slot.bytes && u64::from(len) <= LONGEST, "{len} bytes in a slot");
        let kernels = self.gpu.kernels();
        let fold = folding.parameter(slot.address, slot.folded.start.as_ptr().addr() as u64);
        // Before anything is scattered: a peer may write to the slot at any time, and the sum is to be of what it has handed over.
        if way == Way::Scatter {
            kernels.fold(&self.stream, fold, folding.threads)?;
        }
        for Moved { stream, range, at } in moved {
            let end = u64::from(*at) + (range.end - range.start);
            assert!(end <= u64::from(len), "bytes up to {end} in {len}");
            let address = slot.address + u64::from(*at);
            let launches = stream.launches(way, range.clone(), address)?;
            kernels.launch(&self.stream, &launches, Some(DEFAULT_MULTIPROCESSORS))?;
        }
        if way == Way::Gather {
            kernels.fold(&self.stream, fold, folding.threads)?;
        }
        Ok(())
    }
}
