//! Slots of shared device memory. Caches are gathered into them, or scattered from them, and summed, all on the GPU.

use std::mem;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::crossing::{Bytes, Way};
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::launch::DEFAULT_MULTIPROCESSORS;
use crate::resources::{Event, Pinned, Stream};
use crate::shared::SharedAllocation;
use crate::stream::DeviceStream;
use crate::sum::{FOLDED, Folding, LONGEST};
use crate::threads::Told;
use transload_memory::copy::Crc32c;

/// The interval at which a dropped ring checks whether all of its work is done.
const LOOK: Duration = Duration::from_millis(1);

/// The most rings that a process makes on a GPU, 240 MiB in all. The holder of a certificate chooses how many agents it
/// runs, and the memory is taken from the engine.
const MOST_RINGS: usize = 10;

/// The number of slots of a ring, and their size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    pub count: u32,
    pub bytes: u32,
}

impl Slots {
    /// The slots of a ring that this agent makes. With 4 MiB a slot, the summing kernel is predicted to reach its full
    /// speed. A slot takes 24 us to gather and sum, and as long on the other side; waking threads takes another 80 us
    /// before it is free again. So six slots could carry 200 GB/s, more than the kernels' 170; four could carry 135.
    /// These 24 MiB, with what a [`Gpu`] keeps, are 92 MiB.
    pub const OF_A_RING: Self = Self { count: 6, bytes: 4 << 20 };

    fn total(self) -> u64 {
        u64::from(self.count) * u64::from(self.bytes)
    }
}

/// A range of a stream, and the offset in a slot where its bytes lie.
pub struct Moved {
    pub stream: Arc<DeviceStream>,
    pub range: Range<u64>,
    pub at: u32,
}

/// One end of a ring in device memory. Operations run in the order in which they were submitted.
#[derive(Debug)]
pub struct Shuttle {
    gpu: Gpu,
    stream: Arc<Stream>,
    slots: Vec<Arc<Slot>>,
    /// Counts this ring among those that this process has made on the GPU. Imported rings are not counted.
    counted: Option<Arc<()>>,
}

/// A slot. Operations keep it until they are done.
#[derive(Debug)]
struct Slot {
    _memory: Arc<SharedAllocation>,
    address: u64,
    bytes: u32,
    /// The kernel writes the folded text here; the host reads it when the kernel is done.
    folded: Pinned,
    done: Arc<Event>,
}

impl Drop for Shuttle {
    /// Frees the memory on a separate thread once all submitted work is done: the driver waits for the device then, and
    /// the caller must go on serving other peers.
    fn drop(&mut self) {
        let (slots, stream) = (mem::take(&mut self.slots), self.stream.clone());
        let (gpu, counted) = (self.gpu.clone(), self.counted.take());
        let give_back = move || {
            while slots.iter().any(|slot| Arc::strong_count(slot) > 1) {
                thread::sleep(LOOK);
            }
            drop((slots, stream, gpu, counted));
        };
        // If no thread can be started, the memory is freed here, when the closure is dropped.
        let _ = thread::Builder::new().spawn(give_back);
    }
}

impl Shuttle {
    /// Allocates the memory, and opens a descriptor for the other end.
    ///
    /// # Errors
    /// [`DeviceError::TooManyRings`], or an error of the driver.
    pub fn create(gpu: &Gpu, slots: Slots) -> Result<(Self, OwnedFd), DeviceError> {
        gpu.check_rings(MOST_RINGS)?;
        let (memory, descriptor) = SharedAllocation::create(gpu.context(), slots.total())?;
        let mut made = Self::new(gpu, slots, memory)?;
        made.counted = Some(gpu.rings());
        Ok((made, descriptor))
    }

    /// Maps memory that the other end has made.
    ///
    /// # Errors
    /// The descriptor is not shared memory that this GPU can access, or is too short.
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

    /// Gathers bytes into a slot, and then sums its first `len` bytes. `told` gets the sum; until then the caller uses
    /// the slot for no other operation.
    pub fn gather(&self, slot: usize, moved: &[Moved], len: u32, told: Told<Crc32c>) {
        self.submit(slot, moved, len, Way::Gather, told);
    }

    /// Sums the first `len` bytes of a slot, and then scatters them. `told` gets the sum, as for
    /// [`gather`](Self::gather).
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
            // Released first: the callback may free the ring.
            drop((slot, _streams));
            told(summed);
        };
        let submitted = self.launch(&slot, moved, folding, len, way);
        // Parts that were submitted may still use all of this, even if a later call failed.
        let ended = move |ended| finish(submitted.and(ended));
        let queue = self.gpu.queue();
        queue.watch_behind(&self.stream, done, Box::new(ended));
    }

    fn launch(&self, slot: &Slot, moved: &[Moved], folding: Folding, len: u32, way: Way) -> Result<(), DeviceError> {
        assert!(len <= slot.bytes && u64::from(len) <= LONGEST, "{len} bytes in a slot");
        let kernels = self.gpu.kernels();
        let fold = folding.parameter(slot.address, slot.folded.start.as_ptr().addr() as u64);
        // Summed before the scatter: the peer can write to the slot at any time, and the sum must be of what it handed
        // over.
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
