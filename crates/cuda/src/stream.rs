//! Device memory as a stream of bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::arena::Table;
use crate::crossing::{Bytes, DmaBuffer, Way};
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::launch::{End, Ends, Launch, Launches};
use crate::memory::DeviceMemory;
use crate::pool::Held;
use crate::queue::Want;
use crate::threads::Told;
use transload_memory::{Access, CheckError, Side};
use transload_plan::program::StreamProgram;

/// The bytes of device memory in the order of a [`StreamProgram`]. The kernel gathers and scatters them.
#[derive(Debug)]
pub struct DeviceStream {
    memory: DeviceMemory,
    launches: Launches,
    places: Table,
    bytes: u64,
}

impl DeviceStream {
    /// Lays a program over the memory, and uploads the kernel's tables.
    pub fn new(program: &StreamProgram, memory: &DeviceMemory) -> Result<Arc<Self>, DeviceError> {
        memory.check(program.program(), Side::Source)?;
        let launches = Launches::new(program.program())?;
        launches.check_ranges()?;
        let places = memory.gpu().arena().upload(launches.places())?;
        let (memory, bytes) = (memory.clone(), program.bytes());
        Ok(Arc::new(Self { memory, launches, places, bytes }))
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        self.memory.gpu()
    }

    /// Gathers bytes into the start of a piece, which `told` gets.
    pub fn gather(self: &Arc<Self>, range: Range<u64>, told: Told<Held>) {
        let want = Want::Cross(self.clone(), range, Way::Gather, None, told);
        self.gpu().queue().want(want);
    }

    /// Moves bytes to or from memory of the host, which is released before `told` is called.
    pub fn carry(self: &Arc<Self>, range: Range<u64>, way: Way, host: Box<dyn DmaBuffer>, told: Told<Held>) {
        let want = Want::Cross(self.clone(), range, way, Some(host), told);
        self.gpu().queue().want(want);
    }

    /// Requests a piece, to be filled and scattered.
    pub fn acquire(&self, told: Told<Held>) {
        self.gpu().queue().want(Want::Fill(told));
    }

    /// Scatters the first bytes of a piece.
    pub fn scatter(self: &Arc<Self>, held: Held, range: Range<u64>, told: Told<Held>) {
        self.gpu().queue().scatter(held, self.clone(), range, told);
    }
}

impl Bytes for DeviceStream {
    fn launches(&self, way: Way, range: Range<u64>, buffer: u64) -> Result<Vec<Launch>, DeviceError> {
        if way == Way::Scatter && self.memory.access() == Access::Read {
            return Err(CheckError::ReadOnly.into());
        }
        let ends = Ends {
            places: self.places.address(),
            src_bases: self.memory.bases(),
            dst: End::buffer(buffer, range.start),
            bases: self.memory.alignment(),
            reverse: way == Way::Scatter,
        };
        Ok(self.launches.range(&ends, range)?)
    }
}
