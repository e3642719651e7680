//! Device memory that two processes share: one process makes it, and the other maps it through a file descriptor, for
//! the same device or for one that can access it.
//!
//! The memory exists for as long as any process maps it, even if its maker has died. It gives no access to other device
//! memory of a process.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use crate::context::Context;
use crate::driver;
use crate::error::DeviceError;
use crate::sys::*;

const DESCRIPTOR: u32 = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Shared memory, mapped in this process for one device. Dropping it unmaps it, so nothing may use it by then.
#[derive(Debug)]
pub(crate) struct SharedAllocation {
    context: Arc<Context>,
    address: CUdeviceptr,
    reserved: usize,
    mapped: bool,
}

/// The driver's handle of shared memory. Mappings stay valid without it.
struct Handle<'a> {
    context: &'a Context,
    raw: CUmemGenericAllocationHandle,
}

impl SharedAllocation {
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

    /// Maps at least `len` bytes of memory that another process has made.
    ///
    /// # Errors
    /// The descriptor is not such memory, has fewer bytes, or is on a device that this one cannot access.
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
        // SAFETY: the addresses were just reserved, so nothing else is there. The driver refuses to map more bytes than
        // exist.
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

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Handle<'_> {
    /// Checks that the memory is on this device or on one that it can access, and not on the host.
    fn check_device(&self) -> Result<(), DeviceError> {
        let mut properties = CUmemAllocationProp::default();
        // SAFETY: they go into a local variable.
        let status = unsafe { driver::cuMemGetAllocationPropertiesFromHandle(&mut properties, self.raw) };
        self.context.check("cuMemGetAllocationPropertiesFromHandle", status)?;
        let CUmemLocation { kind, id } = properties.location;
        let expected = self.context.ordinal();
        let is_device = kind == CU_MEM_LOCATION_TYPE_DEVICE;
        let reached = |id| match reaches(self.context, id) {
            // This process sees no such device.
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

/// Returns the UUID of a context's device, or of its part of one under MIG. It is the same in every process.
pub(crate) fn uuid(context: &Context) -> Result<[u8; 16], DeviceError> {
    uuid_of(context, context.device())
}

fn uuid_of(context: &Context, device: CUdevice) -> Result<[u8; 16], DeviceError> {
    let _entered = context.enter()?;
    let mut uuid = [0; 16];
    // SAFETY: it goes into a local variable.
    let status = unsafe { driver::cuDeviceGetUuid_v2(&mut uuid, device) };
    context.check("cuDeviceGetUuid_v2", status)?;
    Ok(uuid)
}

pub(crate) fn reached(context: &Context) -> Result<Vec<[u8; 16]>, DeviceError> {
    let (mut count, mut reached) = (0, Vec::new());
    // SAFETY: the number goes into a local variable, here and below.
    let counted = unsafe { driver::cuDeviceGetCount(&mut count) };
    context.check("cuDeviceGetCount", counted)?;
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: as above.
        let status = unsafe { driver::cuDeviceGet(&mut device, ordinal) };
        context.check("cuDeviceGet", status)?;
        if device != context.device() && reaches(context, device)? {
            reached.push(uuid_of(context, device)?);
        }
    }
    Ok(reached)
}

fn reaches(context: &Context, device: CUdevice) -> Result<bool, DeviceError> {
    let mut can = 0;
    // SAFETY: as above.
    let status = unsafe { driver::cuDeviceCanAccessPeer(&mut can, context.device(), device) };
    context.check("cuDeviceCanAccessPeer", status)?;
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

fn granular(context: &Context, len: u64) -> Result<usize, DeviceError> {
    let mut step = 0;
    // SAFETY: the number goes into a local variable.
    let status = unsafe {
        let option = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        driver::cuMemGetAllocationGranularity(&mut step, &properties(context), option)
    };
    context.check("cuMemGetAllocationGranularity", status)?;
    Ok((len as usize).next_multiple_of(step.max(1)))
}
