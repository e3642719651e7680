//! Plain copies of the driver: one copy of many bytes, and one copy for each chunk.

use std::time::{Duration, Instant};

use super::{Meter, Took, first, too_short};
use crate::driver::{self, CuMemcpyBatchAsync};
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::memory::DeviceMemory;
use crate::resources::{Pinned, Stream};
use crate::sys::*;
use transload_memory::{Access, Side};
use transload_plan::program::Program;

/// Descriptors that are passed to the driver in a call. Its limit is not documented.
const BATCH: usize = 1 << 16;

/// Memory of the host that the GPU's copy engines reach.
#[derive(Debug)]
pub struct PinnedMemory(Pinned);

/// The chunks of a program, as the list of copies that the driver needs without a kernel.
#[derive(Debug)]
pub struct ChunkList {
    to: Vec<u64>,
    from: Vec<u64>,
    lens: Vec<usize>,
    /// The driver's function for batches, if it has one and has not refused this list.
    batch: Option<CuMemcpyBatchAsync>,
    _memories: [DeviceMemory; 2],
}

impl PinnedMemory {
    /// Allocates that many bytes, zeroed.
    ///
    /// # Errors
    /// An error of the driver, usually out of memory.
    pub fn allocate(gpu: &Gpu, bytes: usize) -> Result<Self, DeviceError> {
        Pinned::new(gpu.context(), bytes).map(Self)
    }
}

impl ChunkList {
    /// Lists the first chunks of a program, at most `most`.
    ///
    /// # Errors
    /// [`DeviceError`], as for [`copy`](crate::copy()).
    pub fn new(
        program: &Program,
        source: &DeviceMemory,
        destination: &DeviceMemory,
        most: usize,
    ) -> Result<Self, DeviceError> {
        source.check(program, Side::Source)?;
        destination.check(program, Side::Destination)?;
        let mut list = Self {
            to: Vec::new(),
            from: Vec::new(),
            lens: Vec::new(),
            batch: driver::batches(),
            _memories: [source.clone(), destination.clone()],
        };
        program.for_each_chunk(|from, to, len| {
            if list.lens.len() < most {
                list.from.push(source.address(from));
                list.to.push(destination.address(to));
                list.lens.push(len as usize);
            }
        });
        Ok(list)
    }

    /// Returns the number of bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.lens.iter().map(|len| *len as u64).sum()
    }

    /// Returns the name of the driver's function that copies them: `cuMemcpyBatchAsync` from CUDA 12.8 on, unless it
    /// has refused the list, else `cuMemcpyDtoDAsync` for each chunk.
    pub fn copied_by(&self) -> &'static str {
        match self.batch {
            Some(_) => "cuMemcpyBatchAsync",
            None => "cuMemcpyDtoDAsync",
        }
    }
}

impl Meter {
    /// Copies the first `bytes` bytes of one memory's first allocation to another's, with one copy of the driver.
    ///
    /// # Errors
    /// [`DeviceError::PastEnd`] if an allocation is shorter,
    /// [`CheckError::ReadOnly`](transload_memory::CheckError::ReadOnly), or an error of the driver.
    pub fn one_copy(&self, source: &DeviceMemory, destination: &DeviceMemory, bytes: u64) -> Result<Took, DeviceError> {
        let (from, to) = (first(source, bytes, Access::Read)?, first(destination, bytes, Access::ReadWrite)?);
        self.time(|| {
            let _entered = self.gpu.context().enter()?;
            // SAFETY: both are that long, and `time` waits for the end.
            let copied = unsafe { driver::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.stream.raw) };
            self.gpu.context().check("cuMemcpyDtoDAsync_v2", copied)
        })
    }

    /// Copies each chunk with its own descriptor, many [in one call](ChunkList::copied_by) if the driver accepts that.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn chunk_copies(&self, list: &mut ChunkList) -> Result<Took, DeviceError> {
        self.time(|| {
            let _entered = self.gpu.context().enter()?;
            if let Some(batch) = list.batch {
                match self.submit_batches(list, batch) {
                    Err(error) if !error.is_lost() => list.batch = None,
                    done => return done,
                }
            }
            for ((to, from), len) in list.to.iter().zip(&list.from).zip(&list.lens) {
                // SAFETY: each chunk was checked against memories that the list keeps; `time` waits for the end.
                let copied = unsafe { driver::cuMemcpyDtoDAsync_v2(*to, *from, *len, self.stream.raw) };
                self.gpu.context().check("cuMemcpyDtoDAsync_v2", copied)?;
            }
            Ok(())
        })
    }

    fn submit_batches(&self, list: &mut ChunkList, batch: CuMemcpyBatchAsync) -> Result<(), DeviceError> {
        let here = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: self.gpu.ordinal() as i32 };
        let mut attributes = CUmemcpyAttributes {
            src_access_order: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            src_loc_hint: here,
            dst_loc_hint: here,
            flags: 0,
        };
        let ends = list.to.chunks_mut(BATCH).zip(list.from.chunks_mut(BATCH));
        for ((to, from), lens) in ends.zip(list.lens.chunks_mut(BATCH)) {
            let (mut first, mut failed) = (0, 0);
            // SAFETY: as in `chunk_copies`; the three lists have one length, and the one set of attributes applies to
            // all from the first on.
            let copied = unsafe {
                batch(
                    to.as_mut_ptr(),
                    from.as_mut_ptr(),
                    lens.as_mut_ptr(),
                    lens.len(),
                    &mut attributes,
                    &mut first,
                    1,
                    &mut failed,
                    self.stream.raw,
                )
            };
            self.gpu.context().check("cuMemcpyBatchAsync", copied)?;
        }
        Ok(())
    }

    /// Copies the first `bytes` bytes of a memory's first allocation to pinned memory, or back, with one copy of the
    /// driver.
    ///
    /// # Errors
    /// Returns the errors of [`one_copy`](Self::one_copy).
    pub fn one_crossing(
        &self,
        memory: &DeviceMemory,
        pinned: &mut PinnedMemory,
        bytes: u64,
        to_host: bool,
    ) -> Result<Took, DeviceError> {
        let device = first(memory, bytes, needed(to_host))?;
        let bytes = pinned.len(bytes)?;
        self.time(|| self.carry(&self.stream, device, pinned, bytes, to_host))
    }

    /// Copies in both directions at once, on two streams: to the host from the first memory, and from the host to the
    /// second. Returns the time until both were done.
    ///
    /// # Errors
    /// Returns the errors of [`one_copy`](Self::one_copy).
    pub fn both_crossings(
        &self,
        [out, back]: [&DeviceMemory; 2],
        [to, from]: [&mut PinnedMemory; 2],
        bytes: u64,
    ) -> Result<Duration, DeviceError> {
        let devices = (first(out, bytes, needed(true))?, first(back, bytes, needed(false))?);
        let lens = (to.len(bytes)?, from.len(bytes)?);
        let started = Instant::now();
        let submitted = self
            .carry(&self.stream, devices.0, to, lens.0, true)
            .and_then(|()| self.carry(&self.other, devices.1, from, lens.1, false));
        // Copies that were submitted still use the memories, even if a later call failed.
        let done = [self.settle(&self.stream), self.settle(&self.other)];
        submitted?;
        done.into_iter().collect::<Result<(), _>>()?;
        Ok(started.elapsed())
    }

    fn carry(
        &self,
        stream: &Stream,
        device: u64,
        pinned: &mut PinnedMemory,
        len: usize,
        to_host: bool,
    ) -> Result<(), DeviceError> {
        let context = self.gpu.context();
        let _entered = context.enter()?;
        let (host, raw) = (pinned.0.start.as_ptr(), stream.raw);
        if to_host {
            // SAFETY: both are that long, and the callers wait for the end.
            let copied = unsafe { driver::cuMemcpyDtoHAsync_v2(host.cast(), device, len, raw) };
            context.check("cuMemcpyDtoHAsync_v2", copied)
        } else {
            // SAFETY: as above.
            let copied = unsafe { driver::cuMemcpyHtoDAsync_v2(device, host.cast(), len, raw) };
            context.check("cuMemcpyHtoDAsync_v2", copied)
        }
    }
}

impl PinnedMemory {
    fn len(&self, bytes: u64) -> Result<usize, DeviceError> {
        let len = self.0.len as u64;
        match bytes <= len {
            true => Ok(bytes as usize),
            false => Err(too_short(bytes, len)),
        }
    }
}

fn needed(to_host: bool) -> Access {
    match to_host {
        true => Access::Read,
        false => Access::ReadWrite,
    }
}
