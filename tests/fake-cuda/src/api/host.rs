//! Pinned memory of the host.

use std::ffi::c_uint;

use super::memory::remove;
use crate::code::*;
use crate::entry::{Out, driver};
use crate::memory::{self, Kind, OFFSET, Region};
use crate::view::View;

/// CU_MEMHOSTALLOC_PORTABLE, DEVICEMAP and WRITECOMBINED.
const ALLOC_FLAGS: c_uint = 7;

/// CU_MEMHOSTREGISTER_PORTABLE, DEVICEMAP and READ_ONLY.
const REGISTER_FLAGS: c_uint = 1 | 2 | READ_ONLY;
const READ_ONLY: c_uint = 8;

driver! {
    fn cuMemHostAlloc(pointer: Out<u64>, size: usize, flags: c_uint) allocating |device| {
        if size == 0 || pointer.is_null() || flags & !ALLOC_FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let view = View::allocate(size)?;
        let start = view.start();
        let region = Region { size: size as u64, device, kind: Kind::HostAllocated(view) };
        memory::write().regions.insert(start, region);
        pointer.give(start)
    };

    fn cuMemFreeHost(pointer: u64) in_context |_| remove(pointer, CUDA_ERROR_INVALID_VALUE, |region| {
        matches!(region.kind, Kind::HostAllocated(_))
    });

    fn cuMemHostRegister_v2(pointer: u64, size: usize, flags: c_uint) allocating |device| {
        let size = size as u64;
        let end = pointer.checked_add(size).filter(|end| *end <= OFFSET);
        if pointer == 0 || size == 0 || end.is_none() || flags & !REGISTER_FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut memory = memory::write();
        if memory.overlapping(pointer, size).is_some() {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let kind = Kind::HostRegistered { read_only: flags & READ_ONLY != 0 };
        memory.regions.insert(pointer, Region { size, device, kind });
        Ok(())
    };

    fn cuMemHostUnregister(pointer: u64) in_context |_| {
        remove(pointer, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, |region| {
            matches!(region.kind, Kind::HostRegistered { .. })
        })
    };

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: u64, flags: c_uint) in_context |_| {
        let pinned = memory::read().at(pointer).is_some_and(|(_, region)| region.is_host());
        if flags != 0 || !pinned {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        address.give(pointer)
    };
}
