//! The CUDA driver of this machine, found at run time, and the functions of it that this crate calls.
//!
//! The library is loaded as `libcuda.so.1`, its name on every system. The name `libcuda.so` is avoided because toolkits
//! install a stub for linking under it. All functions are looked up before the first call.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;
use std::{fs, mem};

use libloading::Library;

use crate::error::{CallError, NoCuda};
use crate::sys::*;

const LIBRARY: &str = "libcuda.so.1";

/// A function that submits many copies in one call. Drivers have it since CUDA 12.8, and only benchmarks call it.
pub(crate) type CuMemcpyBatchAsync = unsafe extern "C" fn(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut CUmemcpyAttributes,
    attrs_idxs: *mut usize,
    num_attrs: usize,
    fail_idx: *mut usize,
    stream: CUstream,
) -> CUresult;

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Defines the table of functions, and one function of this module for each entry, which calls it.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        #[expect(non_snake_case, reason = "the names are those of the driver's header")]
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) -> CUresult,)*
            batches: Option<CuMemcpyBatchAsync>,
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, NoCuda> {
                Ok(Self {
                    $(
                        // SAFETY: the type is that of the driver's header.
                        $name: *unsafe { library.get(stringify!($name)) }
                            .map_err(|_| NoCuda::NoFunction { name: stringify!($name) })?,
                    )*
                    // SAFETY: as above.
                    batches: unsafe { library.get("cuMemcpyBatchAsync") }.ok().map(|found| *found),
                })
            }
        }

        $(
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are those of the driver's header")]
            pub(crate) unsafe fn $name($($argument: $type),*) -> CUresult {
                match FUNCTIONS.get() {
                    // SAFETY: the caller keeps the function's contract.
                    Some(functions) => unsafe { (functions.$name)($($argument),*) },
                    None => CUresult::NOT_INITIALIZED,
                }
            }
        )*
    };
}

functions! {
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuGetErrorName(error: CUresult, name: *mut *const c_char);
    fn cuInit(flags: c_uint);
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    fn cuMemAddressFree(address: CUdeviceptr, size: usize);
    fn cuMemAddressReserve(address: *mut CUdeviceptr, size: usize, alignment: usize, hint: CUdeviceptr, flags: c_ulonglong);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong);
    fn cuMemExportToShareableHandle(to: *mut c_void, handle: CUmemGenericAllocationHandle, kind: u32, flags: c_ulonglong);
    fn cuMemFreeHost(start: *mut c_void);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
    fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const CUmemAllocationProp, option: u32);
    fn cuMemGetAllocationPropertiesFromHandle(properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
    fn cuMemHostAlloc(start: *mut *mut c_void, size: usize, flags: c_uint);
    fn cuMemHostRegister_v2(start: *mut c_void, size: usize, flags: c_uint);
    fn cuMemHostUnregister(start: *mut c_void);
    fn cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, from: *mut c_void, kind: u32);
    fn cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemSetAccess(address: CUdeviceptr, size: usize, description: *const CUmemAccessDesc, count: usize);
    fn cuMemUnmap(address: CUdeviceptr, size: usize);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    fn cuMemcpyPeerAsync(to: CUdeviceptr, there: CUcontext, from: CUdeviceptr, here: CUcontext, size: usize, stream: CUstream);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuPointerGetAttribute(to: *mut c_void, attribute: u32, address: CUdeviceptr);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut u32);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
}

pub(crate) fn batches() -> Option<CuMemcpyBatchAsync> {
    FUNCTIONS.get()?.batches
}

/// Checks whether this machine can move caches in device memory.
///
/// # Errors
/// [`NoCuda`] says why it cannot.
///
/// ```
/// match transload_cuda::available() {
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
    // SAFETY: loading the driver runs its initialisers, as for every program that uses CUDA.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
        // The error's own text names only the function that failed.
        let why = error.source().map(ToString::to_string);
        let why = why.unwrap_or_else(|| error.to_string());
        NoCuda::NoDriver { why }
    })?;
    let functions = Functions::find(&library)?;
    let init = functions.cuInit as usize;
    // The functions are called until the process ends, so the library is never closed.
    mem::forget(library);
    let _ = FUNCTIONS.set(functions);
    // SAFETY: `cuInit` may be called at any time.
    match unsafe { cuInit(0) } {
        CUresult::NO_DEVICE => return Err(NoCuda::NoDevice),
        CUresult::STUB_LIBRARY => {
            let file = file_of(init).unwrap_or_else(|| LIBRARY.to_owned());
            return Err(NoCuda::Stub { file });
        }
        started => check("cuInit", started)?,
    }
    let mut devices = 0;
    // SAFETY: the number goes into a local variable.
    check("cuDeviceGetCount", unsafe { cuDeviceGetCount(&mut devices) })?;
    if devices == 0 { Err(NoCuda::NoDevice) } else { Ok(()) }
}

/// Returns the name of this system if moving caches in device memory was never tested on it.
fn elsewhere() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some(std::env::consts::OS);
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel.to_lowercase().contains("microsoft").then_some("Windows Subsystem for Linux")
}

/// Returns the path of the file that is mapped at an address.
fn file_of(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (start, rest) = line.split_once('-')?;
        let (end, rest) = rest.split_once(' ')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (range, path) = (number(start)?..number(end)?, rest.find('/')?);
        range.contains(&address).then(|| rest[path..].to_owned())
    })
}

pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CallError> {
    if result == CUresult::SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    // SAFETY: the name is a static string of the driver, or null.
    let known = unsafe { cuGetErrorName(result, &mut name) } == CUresult::SUCCESS;
    let name = if known && !name.is_null() {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    } else {
        "an unknown error".to_owned()
    };
    Err(CallError { call, code: result.0, name })
}
