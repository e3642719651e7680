//! The parts of the driver's header, `cuda.h`, that this crate uses, with the header's names.
//!
//! Values that the driver returns are numbers here and no `enum`: a newer driver has results and kinds of memory that
//! no list contains.
#![expect(non_camel_case_types, reason = "the names are those of the driver's header")]

use std::ffi::c_int;

macro_rules! handles {
    ($($name:ident = $of:ident;)*) => {$(
        #[derive(Debug)]
        pub(crate) enum $of {}
        pub(crate) type $name = *mut $of;
    )*};
}

handles! {
    CUcontext = CUctx_st;
    CUevent = CUevent_st;
    CUfunction = CUfunc_st;
    CUmodule = CUmod_st;
    CUstream = CUstream_st;
}

pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
pub(crate) type CUmemGenericAllocationHandle = u64;
pub(crate) type CUuuid = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct CUresult(pub(super) u32);

impl CUresult {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const STUB_LIBRARY: Self = Self(34);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const STREAM_CAPTURE_IMPLICIT: Self = Self(906);
    pub(crate) const UNKNOWN: Self = Self(999);
}

pub(crate) const CU_EVENT_DEFAULT: u32 = 0;
pub(crate) const CU_EVENT_BLOCKING_SYNC: u32 = 1;
pub(crate) const CU_EVENT_DISABLE_TIMING: u32 = 2;
pub(crate) const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: u32 = 3;
pub(crate) const CU_MEM_ALLOCATION_TYPE_PINNED: u32 = 1;
pub(crate) const CU_MEM_ALLOC_GRANULARITY_MINIMUM: u32 = 0;
pub(crate) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
pub(crate) const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
pub(crate) const CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: u32 = 1;
pub(crate) const CU_MEMHOSTREGISTER_PORTABLE: u32 = 1;
pub(crate) const CU_MEMORYTYPE_HOST: u32 = 1;
pub(crate) const CU_MEMORYTYPE_DEVICE: u32 = 2;
pub(crate) const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: u32 = 2;
pub(crate) const CU_POINTER_ATTRIBUTE_IS_MANAGED: u32 = 8;
pub(crate) const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: u32 = 9;
pub(crate) const CU_STREAM_CAPTURE_MODE_RELAXED: u32 = 2;
pub(crate) const CU_STREAM_CAPTURE_STATUS_NONE: u32 = 0;
pub(crate) const CU_STREAM_NON_BLOCKING: u32 = 1;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CUmemLocation {
    pub(crate) kind: u32,
    pub(crate) id: c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) kind: u32,
    pub(crate) requested_handle_types: u32,
    pub(crate) location: CUmemLocation,
    /// Used on Windows only.
    pub(crate) win32_handle_meta_data: usize,
    /// Compression and other features, all off.
    pub(crate) alloc_flags: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CUmemcpyAttributes {
    pub(crate) src_access_order: u32,
    pub(crate) src_loc_hint: CUmemLocation,
    pub(crate) dst_loc_hint: CUmemLocation,
    pub(crate) flags: u32,
}

const _: () = {
    assert!(size_of::<CUmemLocation>() == 8);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUmemAllocationProp>() == 32 && align_of::<CUmemAllocationProp>() == 8);
    assert!(size_of::<CUmemcpyAttributes>() == 24);
};
