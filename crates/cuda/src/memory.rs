//! Memory of a GPU: the allocations of one rank and one group.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::thread;

use crate::arena::Table;
use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::gpu::Gpu;
use crate::resources::Buffer;
use crate::sys::*;
use transload_memory::internal::Extents;
use transload_memory::{Access, CheckError, MAX_ALLOCATION_BYTES, MAX_ALLOCATIONS, MemoryError, Side};
use transload_plan::program::{Program, split_address};

/// The allocations of one rank and one group on one GPU, cheap to clone.
///
/// It is to device memory what [`Memory`](transload_memory::Memory) is to host memory: it gives the addresses of a
/// [`Program`](transload_plan::program::Program) their meaning. Its bytes are reached by [`copy`](super::copy()) only.
#[derive(Clone)]
pub struct DeviceMemory {
    shared: Arc<Shared>,
}

struct Shared {
    gpu: Gpu,
    extents: Extents,
    /// Address and length of each allocation; the addresses are on the device as well.
    allocations: Box<[(CUdeviceptr, usize)]>,
    table: Table,
    /// All addresses, or-ed: how far they are aligned.
    alignment: u64,
    access: Access,
    /// Dropped last: what keeps the bytes where they are.
    _keeper: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceMemory {
    /// Allocates memory of the given lengths in bytes. What is in it is undefined. Giving it back, when the last clone is
    /// dropped, waits for all that anybody has submitted to the device: so does the driver.
    ///
    /// # Errors
    /// [`MemoryError`], or what the driver says: out of memory, mostly. What was allocated before is given back.
    pub fn allocate(gpu: &Gpu, lens: &[usize]) -> Result<Self, DeviceError> {
        check_lens(lens.iter().copied())?;
        let buffers: Result<Vec<_>, _> = lens.iter().map(|&len| Buffer::new(gpu.context(), len)).collect();
        let buffers = buffers?;
        let parts: Vec<_> = buffers.iter().map(|buffer| (buffer.address, buffer.len)).collect();
        let keeper = Arc::new(buffers);
        let memory = Self::new(gpu, &parts, Access::ReadWrite, Some(keeper.clone()));
        if let Err(DeviceError::Stalled { .. }) = memory {
            // Giving it back takes as long as the device stands still.
            thread::spawn(move || drop(keeper));
        }
        memory
    }

    /// Memory that somebody else owns, an engine's cache: the address and the length in bytes of each allocation.
    ///
    /// The driver is asked whether these are bytes of that GPU, and all of them mapped. An allocation may
    /// consist of several mapped ranges, as expandable segments do. The `keeper`, if any, is dropped with the last clone of this memory and the last copy that uses
    /// it.
    ///
    /// # Safety
    /// Until the keeper is dropped (without one: until the process ends) all of these bytes stay mapped. The engine may read and
    /// write them at any time; see [other writers](transload_memory#other-writers).
    ///
    /// # Errors
    /// [`MemoryError`], [`DeviceError::NotDevice`], [`DeviceError::OtherDevice`], [`DeviceError::PastEnd`].
    pub unsafe fn from_raw_parts(
        gpu: &Gpu,
        parts: &[(u64, usize)],
        access: Access,
        keeper: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, DeviceError> {
        check_lens(parts.iter().map(|part| part.1))?;
        for (allocation, &(start, len)) in parts.iter().enumerate() {
            if start == 0 && len > 0 {
                return Err(MemoryError::Null { allocation, len }.into());
            }
            let mapped = check_mapped(gpu, allocation, start, len as u64);
            // The driver knows no memory of a device that is lost.
            gpu.context().check_lost()?;
            mapped?;
        }
        Self::new(gpu, parts, access, keeper)
    }

    /// The ordinal of the GPU that memory of somebody else lies on, for [`Gpu::open`]: where the driver says that the first
    /// allocation is.
    ///
    /// # Errors
    /// [`NoCuda`](super::NoCuda), [`DeviceError::NotDevice`].
    pub fn ordinal_of(parts: &[(u64, usize)]) -> Result<u32, DeviceError> {
        driver::available()?;
        ordinal_of(None, 0, parts.first().map_or(0, |part| part.0))
    }

    fn new(
        gpu: &Gpu,
        parts: &[(CUdeviceptr, usize)],
        access: Access,
        keeper: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, DeviceError> {
        let bases: Vec<_> = parts.iter().map(|part| part.0).collect();
        let table = gpu.arena().upload(&bases)?;
        Ok(Self {
            shared: Arc::new(Shared {
                gpu: gpu.clone(),
                extents: Extents::new(parts.iter().map(|part| part.1 as u64)),
                allocations: parts.into(),
                alignment: bases.iter().fold(0, |or, base| or | base),
                table,
                access,
                _keeper: keeper,
            }),
        })
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.shared.gpu
    }

    /// How many allocations there are.
    pub fn allocations(&self) -> usize {
        self.shared.allocations.len()
    }

    /// The device address and the length in bytes of one allocation.
    pub fn allocation(&self, number: usize) -> Option<(u64, u64)> {
        let (address, len) = *self.shared.allocations.get(number)?;
        Some((address, len as u64))
    }

    /// Where an address of a program is on the device; the program was checked.
    pub(crate) fn address(&self, address: u64) -> u64 {
        let (allocation, offset) = split_address(address);
        self.shared.allocations[allocation].0 + offset
    }

    /// What copies may do with the bytes.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// Proves that every byte that `program` touches on `side` lies in this memory.
    ///
    /// # Errors
    /// The first [`CheckError`] found.
    pub fn check(&self, program: &Program, side: Side) -> Result<(), CheckError> {
        self.shared.extents.check(program, side, self.access())
    }

    /// The address of the table of its bases.
    pub(crate) fn bases(&self) -> u64 {
        self.shared.table.address()
    }

    /// All addresses, or-ed: how far they are aligned.
    pub(crate) fn alignment(&self) -> u64 {
        self.shared.alignment
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("gpu", &self.gpu().ordinal())
            .field("allocations", &self.allocations())
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

fn check_lens(lens: impl ExactSizeIterator<Item = usize>) -> Result<(), MemoryError> {
    if lens.len() > MAX_ALLOCATIONS {
        return Err(MemoryError::TooMany { count: lens.len() });
    }
    for (allocation, len) in lens.enumerate() {
        if len as u64 > MAX_ALLOCATION_BYTES {
            return Err(MemoryError::TooLong { allocation, len });
        }
    }
    Ok(())
}

/// Proves with the driver that all bytes of an allocation are mapped memory of a device.
fn check_mapped(gpu: &Gpu, allocation: usize, start: CUdeviceptr, len: u64) -> Result<(), DeviceError> {
    let context = gpu.context();
    let _entered = context.enter()?;
    let mut mapped = 0;
    while mapped < len {
        let at = start + mapped;
        let past = DeviceError::PastEnd { allocation, len, available: mapped };
        if let Err(error) = check_kind(gpu, allocation, at) {
            return Err(if mapped > 0 { past } else { error });
        }
        let (mut base, mut size) = (0, 0);
        // SAFETY: both numbers go into local variables.
        let found = unsafe { driver::cuMemGetAddressRange_v2(&mut base, &mut size, at) };
        if context.check("cuMemGetAddressRange_v2", found).is_err() || size == 0 {
            return Err(past);
        }
        // It may begin before the allocation, and holds `at`.
        mapped = base + size as u64 - start;
    }
    Ok(())
}

/// Proves that an address is memory of that GPU.
fn check_kind(gpu: &Gpu, allocation: usize, at: CUdeviceptr) -> Result<(), DeviceError> {
    let found = ordinal_of(Some(gpu.context()), allocation, at)?;
    let expected = gpu.ordinal();
    if found != expected {
        return Err(DeviceError::OtherDevice { allocation, found, expected });
    }
    Ok(())
}

/// Proves that an address is memory of a GPU, and says of which.
fn ordinal_of(context: Option<&Context>, allocation: usize, at: CUdeviceptr) -> Result<u32, DeviceError> {
    let not = |kind| DeviceError::NotDevice { allocation, kind };
    let attribute = |kind| attribute(context, at, kind);
    let managed = attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED).unwrap_or(0);
    if managed != 0 {
        return Err(not("managed memory"));
    }
    match attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
        Some(CU_MEMORYTYPE_DEVICE) => {}
        Some(CU_MEMORYTYPE_HOST) => {
            return Err(not("pinned host memory"));
        }
        Some(_) => return Err(not("memory of some other kind")),
        None => return Err(not("memory that the driver does not know")),
    }
    attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL).ok_or_else(|| not("memory that the driver does not know"))
}

/// What the driver knows of an address. `context` is told if it is lost.
fn attribute(context: Option<&Context>, at: CUdeviceptr, attribute: u32) -> Option<u32> {
    let mut value = 0u32;
    // SAFETY: each attribute that is asked for has 4 bytes at most.
    let known = unsafe { driver::cuPointerGetAttribute((&raw mut value).cast::<c_void>(), attribute, at) };
    let name = "cuPointerGetAttribute";
    let known = match context {
        Some(context) => context.check(name, known).is_ok(),
        None => driver::check(name, known).is_ok(),
    };
    known.then_some(value)
}
