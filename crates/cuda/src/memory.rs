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

/// The allocations of one rank and one group on one GPU. Clones are cheap and refer to the same memory.
///
/// As [`Memory`](transload_memory::Memory) does for host memory, it gives the addresses of a
/// [`Program`](transload_plan::program::Program) their meaning. Its bytes are reached by [`copy`](super::copy()) only.
#[derive(Clone)]
pub struct DeviceMemory {
    shared: Arc<Shared>,
}

struct Shared {
    gpu: Gpu,
    extents: Extents,
    allocations: Box<[(CUdeviceptr, usize)]>,
    table: Table,
    /// All addresses, combined by OR: their common alignment.
    alignment: u64,
    access: Access,
    /// Keeps the bytes mapped. Declared last, so that it is dropped last.
    _keeper: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceMemory {
    /// Allocates memory of the given lengths in bytes, with undefined contents. When the last clone is dropped, the
    /// driver frees the memory, which waits for all work that any part of the process has submitted to the device.
    ///
    /// # Errors
    /// [`MemoryError`], or an error of the driver, usually out of memory. Allocations that succeeded are freed.
    pub fn allocate(gpu: &Gpu, lens: &[usize]) -> Result<Self, DeviceError> {
        check_lens(lens.iter().copied())?;
        let buffers: Result<Vec<_>, _> = lens.iter().map(|&len| Buffer::new(gpu.context(), len)).collect();
        let buffers = buffers?;
        let parts: Vec<_> = buffers.iter().map(|buffer| (buffer.address, buffer.len)).collect();
        let keeper = Arc::new(buffers);
        let memory = Self::new(gpu, &parts, Access::ReadWrite, Some(keeper.clone()));
        if let Err(DeviceError::Stalled { .. }) = memory {
            // Freeing blocks until the device goes on, so another thread does it.
            thread::spawn(move || drop(keeper));
        }
        memory
    }

    /// Wraps memory that something else owns, such as an engine's cache: the address and the length in bytes of each
    /// allocation.
    ///
    /// The driver must confirm that the bytes are on that GPU and all mapped. An allocation may consist of several
    /// mapped ranges, as expandable segments do. The `keeper`, if any, is dropped after the last clone of this memory
    /// and the last copy that uses it.
    ///
    /// # Safety
    /// All of these bytes stay mapped until the keeper is dropped, or without a keeper until the process ends. The
    /// engine may read and write them at any time; see [other writers](transload_memory#other-writers).
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
            // A lost device makes every query fail: report the loss rather than an unmapped allocation.
            gpu.context().check_lost()?;
            mapped?;
        }
        Self::new(gpu, parts, access, keeper)
    }

    /// Returns the ordinal of the GPU that holds existing memory, for [`Gpu::open`]. The first allocation decides.
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

    /// Returns the GPU that holds the memory.
    pub fn gpu(&self) -> &Gpu {
        &self.shared.gpu
    }

    /// Returns the number of allocations.
    pub fn allocations(&self) -> usize {
        self.shared.allocations.len()
    }

    /// Returns the device address and the length in bytes of one allocation.
    pub fn allocation(&self, number: usize) -> Option<(u64, u64)> {
        let (address, len) = *self.shared.allocations.get(number)?;
        Some((address, len as u64))
    }

    /// Converts an address of a program, which must have been checked, to a device address.
    pub(crate) fn address(&self, address: u64) -> u64 {
        let (allocation, offset) = split_address(address);
        self.shared.allocations[allocation].0 + offset
    }

    /// Returns what copies may do with the bytes.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// Checks that every byte that `program` touches on `side` lies in this memory.
    ///
    /// # Errors
    /// The first [`CheckError`] that is found.
    pub fn check(&self, program: &Program, side: Side) -> Result<(), CheckError> {
        self.shared.extents.check(program, side, self.access())
    }

    pub(crate) fn bases(&self) -> u64 {
        self.shared.table.address()
    }

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
        let status = unsafe { driver::cuMemGetAddressRange_v2(&mut base, &mut size, at) };
        if context.check("cuMemGetAddressRange_v2", status).is_err() || size == 0 {
            return Err(past);
        }
        // The mapped range contains `at`, but may begin before the allocation.
        mapped = base + size as u64 - start;
    }
    Ok(())
}

fn check_kind(gpu: &Gpu, allocation: usize, at: CUdeviceptr) -> Result<(), DeviceError> {
    let found = ordinal_of(Some(gpu.context()), allocation, at)?;
    let expected = gpu.ordinal();
    if found != expected {
        return Err(DeviceError::OtherDevice { allocation, found, expected });
    }
    Ok(())
}

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

/// Queries an attribute of an address. If `context` is given, it learns whether the device is lost.
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
