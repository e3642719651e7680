//! The attributes of addresses.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUpointer_attribute as Attribute;

use super::context::handle;
use crate::code::*;
use crate::entry::{In, Out, driver};
use crate::memory::{self, Kind, Region, view};

/// CU_MEMORYTYPE_HOST and DEVICE.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

driver! {
    fn cuPointerGetAttribute(data: Out<u8>, attribute: c_uint, address: u64) not_lost || {
        let memory = memory::read();
        let found = memory.at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        give(data, attribute, address, Some(found))
    };

    // The attributes of an unknown address are 0.
    fn cuPointerGetAttributes(
        count: c_uint, attributes: In<c_uint>, data: In<Out<u8>>, address: u64
    ) not_lost || {
        let memory = memory::read();
        for index in 0..count as usize {
            let (attribute, data) = (attributes.nth(index).read()?, data.nth(index).read()?);
            give(data, attribute, address, memory.at(address))?;
        }
        Ok(())
    };
}

fn give(data: Out<u8>, attribute: c_uint, address: u64, found: Option<(u64, &Region)>) -> Result {
    let is = |known: Attribute| known as c_uint == attribute;
    let region = found.map(|(_, region)| region);
    if is(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
        data.cast().give(region.map_or(0, |region| if region.is_host() { HOST } else { DEVICE }))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
        // CU_DEVICE_INVALID is -2.
        data.cast().give(region.map_or(-2, |region| region.device as c_int))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
        data.cast().give(found.map_or(0, |(start, _)| start))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
        data.cast().give(region.map_or(0, |region| region.size as usize))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED) {
        let managed = region.is_some_and(|region| matches!(region.kind, Kind::Managed(_)));
        data.cast().give(c_uint::from(managed))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT) {
        // Mapped memory does not belong to a context.
        let of = region.filter(|region| !matches!(region.kind, Kind::Mapped(_)));
        data.cast().give(of.map_or(0, |region| handle(region.device)))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
        data.cast().give(region.map_or(0, |_| address))
    } else if is(Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER) {
        let of = region.filter(|region| region.is_host() || matches!(region.kind, Kind::Managed(_)));
        data.cast().give(of.map_or(std::ptr::null_mut(), |_| view(address)))
    } else {
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}
