//! Bytes that go through slots of device memory, as over a ring there, with neither sums nor agents.

use super::{Meter, Took};
use crate::device::error::DeviceError;
use crate::device::gpu::DEFAULT_MULTIPROCESSORS;
use crate::device::memory::DeviceMemory;
use crate::device::resources::{Buffer, Event};
use crate::device::stream::{DeviceStream, Way};
use crate::memory::Side;
use crate::plan::program::Program;

/// How many slots there are, and how many bytes each has: as many as of a ring between two agents.
const SLOTS: u64 = 4;
const SLOT: u64 = 4 << 20;

struct Slot {
    memory: Buffer,
    filled: Event,
    emptied: Event,
}

impl Meter {
    /// Moves the bytes of a program between two memories of this GPU through slots: one stream gathers into them while another
    /// scatters from them, each on [`DEFAULT_MULTIPROCESSORS`].
    ///
    /// # Errors
    /// As of [`prepare`](Self::prepare).
    pub fn through_slots(
        &self,
        program: &Program,
        [source, destination]: [&DeviceMemory; 2],
    ) -> Result<Took, DeviceError> {
        destination.check(program, Side::Destination)?;
        self.check_own(source)?;
        self.check_own(destination)?;
        let from = DeviceStream::new(&program.stream(Side::Source), source)?;
        let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
        let context = self.gpu.context();
        let slot = |_| {
            Ok::<_, DeviceError>(Slot {
                memory: Buffer::new(context, SLOT as usize)?,
                filled: Event::new(context)?,
                emptied: Event::new(context)?,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<Vec<_>, _>>()?;
        let (kernels, few) = (self.gpu.kernels(), Some(DEFAULT_MULTIPROCESSORS));
        let took = self.time(|| {
            for (number, slot) in (0..from.bytes().div_ceil(SLOT)).zip(slots.iter().cycle()) {
                let range = number * SLOT..((number + 1) * SLOT).min(from.bytes());
                let address = slot.memory.address;
                self.other.wait_for(&slot.emptied)?;
                let gather = from.launches(Way::Gather, range.clone(), address)?;
                kernels.launch(&self.other, &gather, few)?;
                slot.filled.record(&self.other)?;
                self.stream.wait_for(&slot.filled)?;
                let scatter = to.launches(Way::Scatter, range, address)?;
                kernels.launch(&self.stream, &scatter, few)?;
                slot.emptied.record(&self.stream)?;
            }
            Ok(())
        });
        // Where the submission was cut off, nothing waits for the last slot.
        self.settle(&self.other)?;
        took
    }
}
