//! Bytes that pass through slots of device memory, as in a device ring, but without checksums or agents.

use super::{Meter, Took};
use crate::crossing::{Bytes, Way};
use crate::error::DeviceError;
use crate::launch::DEFAULT_MULTIPROCESSORS;
use crate::memory::DeviceMemory;
use crate::resources::{Buffer, Event};
use crate::shuttle::Slots;
use crate::stream::DeviceStream;
use transload_memory::Side;
use transload_plan::program::Program;

/// Bytes of a slot. Their number, too, is that of a ring between two agents.
const SLOT: u64 = Slots::OF_A_RING.bytes as u64;

struct Slot {
    memory: Buffer,
    filled: Event,
    emptied: Event,
}

impl Meter {
    /// Moves the bytes of programs, each between two memories of this GPU, through slots: one stream gathers into them
    /// while another scatters from them, each on [`DEFAULT_MULTIPROCESSORS`].
    ///
    /// # Errors
    /// Those of [`prepare`](Self::prepare).
    pub fn through_slots(&self, copies: &[(&Program, [&DeviceMemory; 2])]) -> Result<Took, DeviceError> {
        let streams = copies.iter().map(|(program, [source, destination])| {
            destination.check(program, Side::Destination)?;
            self.check_own(source)?;
            self.check_own(destination)?;
            let from = DeviceStream::new(&program.stream(Side::Source), source)?;
            let to = DeviceStream::new(&program.stream(Side::Destination), destination)?;
            Ok((from, to))
        });
        let streams = streams.collect::<Result<Vec<_>, DeviceError>>()?;
        let context = self.gpu.context();
        let slot = |_| {
            Ok::<_, DeviceError>(Slot {
                memory: Buffer::new(context, SLOT as usize)?,
                filled: Event::new(context)?,
                emptied: Event::new(context)?,
            })
        };
        let slots = (0..Slots::OF_A_RING.count).map(slot).collect::<Result<Vec<_>, _>>()?;
        let (kernels, few) = (self.gpu.kernels(), Some(DEFAULT_MULTIPROCESSORS));
        let took = self.time(|| {
            let parts = streams.iter().flat_map(|(from, to)| {
                let starts = (0..from.bytes()).step_by(SLOT as usize);
                starts.map(move |at| (from, to, at..(at + SLOT).min(from.bytes())))
            });
            for ((from, to, range), slot) in parts.zip(slots.iter().cycle()) {
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
        // If the submission failed half-way, the other stream may still use the last slot.
        self.settle(&self.other)?;
        took
    }
}
