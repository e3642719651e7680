//! Device memory: allocations.

use std::ffi::c_uint;

use crate::code::*;
use crate::entry::{Out, driver};
use crate::memory::{self, Kind, OFFSET, Region, TOTAL};
use crate::stream;
use crate::view::View;

driver! {
    fn cuMemAlloc_v2(address: Out<u64>, size: usize) allocating |device| {
        if size == 0 || address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut memory = memory::write();
        let size = size as u64;
        if memory.used(device).checked_add(size).is_none_or(|used| used > TOTAL) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let view = View::allocate(size as usize)?;
        let start = view.start() + OFFSET;
        memory.regions.insert(start, Region { size, device, kind: Kind::Allocated(view) });
        address.give(start)
    };

    // Only CU_MEM_ATTACH_GLOBAL is supported.
    fn cuMemAllocManaged(address: Out<u64>, size: usize, flags: c_uint) allocating |device| {
        if size == 0 || address.is_null() || flags != 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let view = View::allocate(size)?;
        let (start, size, kind) = (view.start(), size as u64, Kind::Managed(view));
        memory::write().regions.insert(start, Region { size, device, kind });
        address.give(start)
    };

    // Like a driver, this first waits for all work of the memory's context.
    fn cuMemFree_v2(address: u64) in_context |_| remove(address, CUDA_ERROR_INVALID_VALUE, |region| {
        matches!(region.kind, Kind::Allocated(_) | Kind::Managed(_))
    });

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) in_context |_| {
        let memory = memory::read();
        let (start, region) = memory.at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !base.is_null() {
            base.give(start)?;
        }
        if size.is_null() { Ok(()) } else { size.give(region.size as usize) }
    };
}

/// Removes the region at this address if `is_such` accepts it, after all work of its context. Otherwise returns
/// `otherwise`.
pub(super) fn remove(address: u64, otherwise: Code, is_such: fn(&Region) -> bool) -> Result {
    let device = {
        let memory = memory::read();
        let known = memory.regions.get(&address).filter(|region| is_such(region));
        known.ok_or(otherwise)?.device
    };
    stream::wait_for_all(device)?;
    memory::write().regions.remove(&address).map(drop).ok_or(otherwise)
}
