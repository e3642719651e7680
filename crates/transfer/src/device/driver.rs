//! The CUDA driver of this machine: found at run time, with everything that is needed of it.
//!
//! Functions are called through cudarc's bindings, which look each up when it is first called and panic where it is
//! missing. So all that this crate calls are listed here, and looked up before the first call.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use super::error::{CallError, NoCuda};

macro_rules! functions {
    ($($name:ident)*) => {
        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
        pub(super) use sys::{$($name),*};
    };
}

functions! {
    cuCtxGetDevice
    cuCtxGetStreamPriorityRange
    cuCtxPopCurrent_v2
    cuCtxPushCurrent_v2
    cuDeviceCanAccessPeer
    cuDeviceGet
    cuDeviceGetCount
    cuDeviceGetName
    cuDeviceGetUuid_v2
    cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxRetain
    cuEventCreate
    cuEventDestroy_v2
    cuEventElapsedTime
    cuEventQuery
    cuEventRecord
    cuGetErrorName
    cuInit
    cuLaunchKernel
    cuMemAddressFree
    cuMemAddressReserve
    cuMemAlloc_v2
    cuMemCreate
    cuMemExportToShareableHandle
    cuMemFreeHost
    cuMemFree_v2
    cuMemGetAddressRange_v2
    cuMemGetAllocationGranularity
    cuMemGetAllocationPropertiesFromHandle
    cuMemHostAlloc
    cuMemHostRegister_v2
    cuMemHostUnregister
    cuMemImportFromShareableHandle
    cuMemMap
    cuMemRelease
    cuMemSetAccess
    cuMemUnmap
    cuMemcpyDtoDAsync_v2
    cuMemcpyDtoHAsync_v2
    cuMemcpyHtoDAsync_v2
    cuMemcpyPeerAsync
    cuModuleGetFunction
    cuModuleLoadData
    cuModuleUnload
    cuPointerGetAttribute
    cuStreamCreateWithPriority
    cuStreamDestroy_v2
    cuStreamIsCapturing
    cuStreamWaitEvent
    cuThreadExchangeStreamCaptureMode
}

/// What only newer drivers have, and only benches call: many copies in one call, from CUDA 12.8 on.
pub(super) use sys::cuMemcpyBatchAsync;

/// Whether the driver has [`cuMemcpyBatchAsync`]. Asked once it was found.
pub(super) fn has_batches() -> bool {
    // SAFETY: the library was found before any GPU was opened; the symbol is only looked up.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(b"cuMemcpyBatchAsync") }.is_ok()
}

/// Whether caches in device memory can be moved here.
///
/// # Errors
/// [`NoCuda`] says why not.
///
/// ```
/// match transload_transfer::device::available() {
///     Ok(()) => println!("there is a GPU"),
///     Err(why) => println!("{why}"),
/// }
/// ```
pub fn available() -> Result<(), NoCuda> {
    static FOUND: OnceLock<Result<(), NoCuda>> = OnceLock::new();
    FOUND.get_or_init(find).clone()
}

fn find() -> Result<(), NoCuda> {
    if let Some(system) = elsewhere() {
        return Err(NoCuda::Elsewhere { system });
    }
    // SAFETY: loading libcuda runs its initialisers, as for every program that uses CUDA.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoCuda::NoDriver);
    }
    // SAFETY: as above; it was just seen to be there, without which this panics.
    let library = unsafe { sys::culib() };
    for name in FUNCTIONS {
        // SAFETY: the symbol is only looked up, not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
            return Err(NoCuda::NoFunction { name });
        }
    }
    // SAFETY: the functions are there, and this one may be called at any time; so for the next.
    let started = unsafe { cuInit(0) };
    if started == CUresult::CUDA_ERROR_NO_DEVICE {
        return Err(NoCuda::NoDevice);
    }
    check("cuInit", started)?;
    let mut devices = 0;
    // SAFETY: the number goes into a local variable.
    check("cuDeviceGetCount", unsafe {
        cuDeviceGetCount(&mut devices)
    })?;
    if devices == 0 {
        Err(NoCuda::NoDevice)
    } else {
        Ok(())
    }
}

/// The name of this system, if it is none that caches in device memory were ever moved on.
fn elsewhere() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some(std::env::consts::OS);
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel
        .to_lowercase()
        .contains("microsoft")
        .then_some("Windows Subsystem for Linux")
}

/// The error of a call, if it gave one.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), CallError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    // SAFETY: the name is a static string of the driver, or null.
    let known = unsafe { cuGetErrorName(result, &mut name) } == CUresult::CUDA_SUCCESS;
    let name = if known && !name.is_null() {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    } else {
        "an unknown error".to_owned()
    };
    Err(CallError {
        call,
        code: result as u32,
        name,
    })
}
