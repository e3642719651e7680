//! The driver, and its devices.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::code::*;
use crate::entry::{self, Out, driver};
use crate::memory::TOTAL;
use crate::settings::settings;

const NAME: &[u8] = b"Fake GPU\0";

driver! {
    fn cuInit(flags: c_uint) anywhere || {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if settings().devices == 0 {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        entry::initialize();
        Ok(())
    };

    fn cuDriverGetVersion(version: Out<c_int>) anywhere || version.give(12080);

    fn cuGetErrorName(error: Code, name: Out<*const c_char>) anywhere || {
        let names = names(error);
        name.give(names.map_or(std::ptr::null(), |(name, _)| name.as_ptr()))?;
        names.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    };

    fn cuGetErrorString(error: Code, text: Out<*const c_char>) anywhere || {
        let names = names(error);
        text.give(names.map_or(std::ptr::null(), |(_, text)| text.as_ptr()))?;
        names.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    };

    fn cuDeviceGetCount(count: Out<c_int>) initialized || count.give(settings().devices as c_int);

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) initialized || {
        check(ordinal)?;
        device.give(ordinal)
    };

    fn cuDeviceGetName(name: Out<u8>, length: c_int, device: c_int) initialized || {
        check(device)?;
        let length = usize::try_from(length).ok().filter(|length| *length > 0);
        let length = length.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // A name that does not fit is cut off and still ends with NUL.
        let cut = NAME.len().min(length) - 1;
        for (index, byte) in NAME[..cut].iter().enumerate() {
            name.nth(index).give(*byte)?;
        }
        name.nth(cut).give(0)
    };

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) initialized || uuid.give(uuid_of(device)?);

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) initialized || uuid.give(uuid_of(device)?);

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) initialized || {
        check(device)?;
        value.give(attribute_of(device, attribute))
    };

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) initialized || {
        check(device)?;
        bytes.give(TOTAL as usize)
    };

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) initialized || {
        can.give((check(device)? != check(peer)?).into())
    };
}

pub(super) fn check(device: c_int) -> Result<usize> {
    let index = usize::try_from(device).ok();
    index.filter(|index| *index < settings().devices).ok_or(CUDA_ERROR_INVALID_DEVICE)
}

fn uuid_of(device: c_int) -> Result<[u8; 16]> {
    let mut uuid = *b"Fake GPU \0\0\0\0\0\0\0";
    uuid[8..].copy_from_slice(&(check(device)? as u64 + 1).to_be_bytes());
    Ok(uuid)
}

/// Returns an attribute; those that the fake does not know are 0.
fn attribute_of(device: c_int, attribute: c_uint) -> c_int {
    const KNOWN: &[(Attribute, c_int)] = &[
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, c_int::MAX),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
        (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    ];
    if attribute == Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as c_uint {
        return device + 1;
    }
    let known = KNOWN.iter().find(|(known, _)| *known as c_uint == attribute);
    known.map_or(0, |(_, value)| *value)
}
