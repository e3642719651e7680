//! Virtual memory management: memory with handles that other processes can import, and its mappings.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};

use cudarc::driver::sys;

use super::device::check;
use crate::board::{Handle, board};
use crate::code::*;
use crate::entry::{In, Out, driver};
use crate::memory::{self, Kind, Memory, OFFSET, Region, Reservation, Shared, TOTAL};
use crate::view::{View, backing};

const GRANULARITY: u64 = 2 << 20;

/// The name of the backing file, followed by the device's number. Imports recognise it.
const NAME: &str = "fake-cuda-shared-";

/// CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const PINNED: c_uint = 1;
const DEVICE: c_uint = 1;
const POSIX: c_uint = 1;

/// `CUmemLocation`, with integers in place of enums, since callers may pass any value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: c_uint,
    handles: c_uint,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    location: Location,
    flags: c_uint,
}

const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

driver! {
    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>, properties: In<Properties>, _option: c_uint
    ) not_lost || {
        device_of(&properties.read()?)?;
        granularity.give(GRANULARITY as usize)
    };

    fn cuMemCreate(made: Out<u64>, size: usize, properties: In<Properties>, flags: c_ulonglong) not_lost || {
        let properties = properties.read()?;
        let device = device_of(&properties)?;
        let size = granular(size as u64)?;
        if flags != 0 || properties.handles & !POSIX != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if memory::read().used(device).checked_add(size).is_none_or(|used| used > TOTAL) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let memory = backing(&format!("{NAME}{device}"), size)?;
        let exportable = properties.handles == POSIX;
        made.give(add(Shared { memory, size, device, exportable }))
    };

    // Existing mappings keep the memory alive.
    fn cuMemRelease(handle: u64) not_lost || {
        let released = memory::write().shared.remove(&(handle as Handle));
        released.map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    };

    fn cuMemExportToShareableHandle(
        descriptor: Out<RawFd>, handle: u64, kind: c_uint, flags: c_ulonglong
    ) not_lost || {
        let memory = memory::read();
        let shared = memory.shared.get(&(handle as Handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if kind != POSIX || flags != 0 || !shared.exportable || descriptor.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let copy = shared.memory.try_clone().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        descriptor.give(copy.into_raw_fd())
    };

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) not_lost || {
        let memory = memory::read();
        let shared = memory.shared.get(&(handle as Handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        properties.give(Properties {
            kind: PINNED,
            handles: if shared.exportable { POSIX } else { 0 },
            location: Location { kind: DEVICE, id: shared.device as c_int },
            windows: 0,
            flags: [0; 8],
        })
    };

    // The descriptor is duplicated; the caller keeps its own.
    fn cuMemImportFromShareableHandle(made: Out<u64>, descriptor: usize, kind: c_uint) not_lost || {
        let descriptor = RawFd::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0);
        let descriptor = descriptor.filter(|_| kind == POSIX).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        made.give(add(import(descriptor).ok_or(CUDA_ERROR_INVALID_VALUE)?))
    };

    // The requested address is only a hint, and is ignored.
    fn cuMemAddressReserve(
        address: Out<u64>, size: usize, alignment: usize, _wish: u64, flags: c_ulonglong
    ) not_lost || {
        let size = granular(size as u64)?;
        if flags != 0 || address.is_null() || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let view = View::reserve(size as usize, alignment.max(GRANULARITY as usize))?;
        let start = view.start() + OFFSET;
        memory::write().reservations.insert(start, Reservation { size, view });
        address.give(start)
    };

    fn cuMemAddressFree(address: u64, size: usize) not_lost || {
        let mut memory = memory::write();
        let reserved = memory.reservations.get(&address).is_some_and(|of| of.size == size as u64);
        if !reserved || memory.overlapping(address, size as u64).is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        memory.reservations.remove(&address);
        Ok(())
    };

    // No device has access to a new mapping.
    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: c_ulonglong) not_lost || {
        let mut memory = memory::write();
        let size = granular(size as u64)?;
        let shared = memory.shared.get(&(handle as Handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (start, reservation) = reservation(&memory, address, size)?;
        let fits = offset == 0 && size <= shared.size && address.is_multiple_of(GRANULARITY);
        if !fits || flags != 0 || memory.overlapping(address, size).is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        reservation.view.put((address - start) as usize, size as usize, shared.memory.as_fd())?;
        let (device, kind) = (shared.device, Kind::Mapped(HashMap::new()));
        memory.regions.insert(address, Region { size, device, kind });
        Ok(())
    };

    // It removes only whole mappings, and waits for running work but not for queued work.
    fn cuMemUnmap(address: u64, size: usize) not_lost || {
        let mut memory = memory::write();
        let mapped = mappings(&memory, address, size as u64)?;
        for start in mapped {
            let region = memory.regions.remove(&start).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let (base, reservation) = reservation(&memory, start, region.size)?;
            reservation.view.clear((start - base) as usize, region.size as usize);
        }
        Ok(())
    };

    fn cuMemSetAccess(address: u64, size: usize, access: In<Access>, count: usize) not_lost || {
        let mut memory = memory::write();
        for start in mappings(&memory, address, size as u64)? {
            for index in 0..count {
                let Access { location, flags } = access.nth(index).read()?;
                let device = device_at(&location)?;
                let Some(Region { kind: Kind::Mapped(access), .. }) = memory.regions.get_mut(&start) else {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                };
                // CU_MEM_ACCESS_FLAGS_PROT_NONE, READ and READWRITE.
                match flags {
                    0 => drop(access.remove(&device)),
                    1 | 3 => drop(access.insert(device, flags == 3)),
                    _ => return Err(CUDA_ERROR_INVALID_VALUE),
                }
            }
        }
        Ok(())
    };
}

fn granular(size: u64) -> Result<u64> {
    let granular = size > 0 && size.is_multiple_of(GRANULARITY);
    granular.then_some(size).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn device_at(location: &Location) -> Result<usize> {
    if location.kind != DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    check(location.id)
}

fn device_of(properties: &Properties) -> Result<usize> {
    if properties.kind != PINNED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    device_at(&properties.location)
}

fn add(shared: Shared) -> u64 {
    let handle = board().handle();
    memory::write().shared.insert(handle, shared);
    handle as u64
}

/// Imports the memory of a descriptor if a fake driver made it.
fn import(descriptor: RawFd) -> Option<Shared> {
    let name = fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
    let name = name.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    let device = check(name.strip_prefix(NAME)?.parse().ok()?).ok()?;
    // SAFETY: /proc has just shown that it is open, and the caller keeps it open during the call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let memory = descriptor.try_clone_to_owned().ok()?;
    let size = rustix::fs::fstat(&memory).ok()?.st_size as u64;
    Some(Shared { memory, size, device, exportable: true })
}

fn reservation(memory: &Memory, address: u64, size: u64) -> Result<(u64, &Reservation)> {
    let before = memory.reservations.range(..=address).next_back();
    let (&start, reservation) = before.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let inside = address - start <= reservation.size && size <= reservation.size - (address - start);
    inside.then_some((start, reservation)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Returns the mappings in a range, which they have to fill exactly.
fn mappings(memory: &Memory, address: u64, size: u64) -> Result<Vec<u64>> {
    let mut starts = Vec::new();
    let mut at = address;
    let end = address.checked_add(size).filter(|_| size > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    while at < end {
        let region = memory.regions.get(&at).filter(|region| matches!(region.kind, Kind::Mapped(_)));
        starts.push(at);
        at += region.ok_or(CUDA_ERROR_INVALID_VALUE)?.size;
    }
    if at == end { Ok(starts) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
