//! Memory of a device that two processes share: made in one of them, and found by a file descriptor in the other, which maps it for
//! the same device or for one that reaches it.
//!
//! It is there for as long as anybody has it mapped, also where whoever made it has died. Nothing else of a process's device
//! memory can be reached through it.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::sys::*;

const DESCRIPTOR: u32 = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Shared memory that this process has mapped for one device. It is unmapped when this is dropped; nothing may use it by then.
#[derive(Debug)]
pub(crate) struct SharedAllocation {
    context: Arc<Context>,
    address: CUdeviceptr,
    reserved: usize,
    mapped: bool,
}

/// The driver's handle of such memory, which mappings do without.
struct Handle<'a> {
    context: &'a Context,
    raw: CUmemGenericAllocationHandle,
}

impl SharedAllocation {
    /// Makes memory of at least `len` bytes, and a descriptor of it.
    pub(crate) fn create(context: &Arc<Context>, len: u64) -> Result<(Self, OwnedFd), DeviceError> {
        let _entered = context.enter()?;
        let (properties, mut raw) = (properties(context), 0);
        let len = granular(context, len)?;
        // SAFETY: the handle goes into a local variable.
        context.check("cuMemCreate", unsafe { driver::cuMemCreate(&mut raw, len, &properties, 0) })?;
        let handle = Handle { context, raw };
        let mut descriptor: RawFd = -1;
        // SAFETY: a descriptor of this kind goes into an integer.
        let exported = unsafe {
            let to = (&raw mut descriptor).cast();
            driver::cuMemExportToShareableHandle(to, raw, DESCRIPTOR, 0)
        };
        context.check("cuMemExportToShareableHandle", exported)?;
        // SAFETY: the driver has just opened it, for us.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok((Self::map(context, &handle, len)?, descriptor))
    }

    /// Maps at least `len` bytes of memory that somebody else has made.
    ///
    /// # Errors
    /// What is no such memory, has fewer bytes, or is on a device that this one does not reach.
    pub(crate) fn import(context: &Arc<Context>, descriptor: BorrowedFd<'_>, len: u64) -> Result<Self, DeviceError> {
        let _entered = context.enter()?;
        let mut raw = 0;
        // SAFETY: the handle goes into a local variable; a descriptor of this kind is passed as a number in a pointer.
        let imported = unsafe {
            let number = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
            driver::cuMemImportFromShareableHandle(&mut raw, number, DESCRIPTOR)
        };
        context.check("cuMemImportFromShareableHandle", imported)?;
        let handle = Handle { context, raw };
        handle.check_device()?;
        Self::map(context, &handle, granular(context, len)?)
    }

    fn map(context: &Arc<Context>, handle: &Handle<'_>, len: usize) -> Result<Self, DeviceError> {
        let mut address = 0;
        // SAFETY: the address goes into a local variable.
        let reserved = unsafe { driver::cuMemAddressReserve(&mut address, len, 0, 0, 0) };
        context.check("cuMemAddressReserve", reserved)?;
        let mut memory = Self { context: context.clone(), address, reserved: len, mapped: false };
        // SAFETY: nothing else is at these addresses: they were just reserved. More than there is the driver refuses.
        let mapped = unsafe { driver::cuMemMap(address, len, 0, handle.raw, 0) };
        context.check("cuMemMap", mapped)?;
        memory.mapped = true;
        let access =
            CUmemAccessDesc { location: properties(context).location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: as above; one description is given.
        let allowed = unsafe { driver::cuMemSetAccess(address, len, &access, 1) };
        context.check("cuMemSetAccess", allowed)?;
        Ok(memory)
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Handle<'_> {
    /// Proves that it is memory of this device or of one that it reaches, and not of the host.
    fn check_device(&self) -> Result<(), DeviceError> {
        let mut properties = CUmemAllocationProp::default();
        // SAFETY: they go into a local variable.
        let told = unsafe { driver::cuMemGetAllocationPropertiesFromHandle(&mut properties, self.raw) };
        self.context.check("cuMemGetAllocationPropertiesFromHandle", told)?;
        let CUmemLocation { kind, id } = properties.location;
        let expected = self.context.ordinal();
        let is_device = kind == CU_MEM_LOCATION_TYPE_DEVICE;
        let reached = |id| match reaches(self.context, id) {
            // The driver knows no such device here.
            Err(error) if !error.is_lost() => Ok(false),
            reached => reached,
        };
        match is_device && (id == self.context.device() || reached(id)?) {
            true => Ok(()),
            false => Err(DeviceError::SharedElsewhere { expected }),
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: made with this, and given back only here.
        let release = || unsafe { driver::cuMemRelease(self.raw) };
        self.context.give_back("cuMemRelease", release);
    }
}

impl Drop for SharedAllocation {
    fn drop(&mut self) {
        let (address, reserved) = (self.address, self.reserved);
        // SAFETY: mapped by this, which was the last to use it.
        let unmap = || unsafe { driver::cuMemUnmap(address, reserved) };
        if !self.mapped || self.context.give_back("cuMemUnmap", unmap) {
            // SAFETY: reserved by this, and nothing is there any more.
            let free = || unsafe { driver::cuMemAddressFree(address, reserved) };
            self.context.give_back("cuMemAddressFree", free);
        }
    }
}

/// Which device a context is of, or which part of one under MIG, whatever number this process gives it.
pub(crate) fn uuid(context: &Context) -> Result<[u8; 16], DeviceError> {
    uuid_of(context, context.device())
}

fn uuid_of(context: &Context, device: CUdevice) -> Result<[u8; 16], DeviceError> {
    let _entered = context.enter()?;
    let mut uuid = [0; 16];
    // SAFETY: it goes into a local variable.
    let told = unsafe { driver::cuDeviceGetUuid_v2(&mut uuid, device) };
    context.check("cuDeviceGetUuid_v2", told)?;
    Ok(uuid)
}

/// The other devices that this process sees, and whose memory kernels of this one reach.
pub(crate) fn reached(context: &Context) -> Result<Vec<[u8; 16]>, DeviceError> {
    let (mut count, mut reached) = (0, Vec::new());
    // SAFETY: the number goes into a local variable, here and below.
    let counted = unsafe { driver::cuDeviceGetCount(&mut count) };
    context.check("cuDeviceGetCount", counted)?;
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: as above.
        let found = unsafe { driver::cuDeviceGet(&mut device, ordinal) };
        context.check("cuDeviceGet", found)?;
        if device != context.device() && reaches(context, device)? {
            reached.push(uuid_of(context, device)?);
        }
    }
    Ok(reached)
}

fn reaches(context: &Context, device: CUdevice) -> Result<bool, DeviceError> {
    let mut can = 0;
    // SAFETY: as above.
    let told = unsafe { driver::cuDeviceCanAccessPeer(&mut can, context.device(), device) };
    context.check("cuDeviceCanAccessPeer", told)?;
    Ok(can != 0)
}

fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: DESCRIPTOR,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: context.device() },
        ..CUmemAllocationProp::default()
    }
}

/// Rounds up to what the device can map.
fn granular(context: &Context, len: u64) -> Result<usize, DeviceError> {
    let mut step = 0;
    // SAFETY: the number goes into a local variable.
    let told = unsafe {
        let option = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        driver::cuMemGetAllocationGranularity(&mut step, &properties(context), option)
    };
    context.check("cuMemGetAllocationGranularity", told)?;
    Ok((len as usize).next_multiple_of(step.max(1)))
}
