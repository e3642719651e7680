//! The process of a test, and helpers that the tests share.

use std::ffi::{CString, c_void};
use std::process::ExitStatus;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, *};
pub(crate) use transload_tests::fake_cuda::{self, Fake};

pub(crate) fn status(test: &str, variables: &[(&str, &str)], body: fn()) -> ExitStatus {
    fake_cuda::status(test, &fake_cuda::library(), variables, body)
}

pub(crate) fn run(test: &str, variables: &[(&str, &str)], body: fn()) {
    let status = status(test, variables, body);
    assert!(status.success(), "{status}");
}

/// Calls a function of the driver that has to succeed.
macro_rules! good {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let code = call!($name($($argument),*));
        assert_eq!(code, cudarc::driver::sys::CUresult::CUDA_SUCCESS, stringify!($name));
    }};
}
pub(crate) use good;

macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the tests follow the driver's contract, or break it in ways that the fake has to detect.
        unsafe { cudarc::driver::sys::$name($($argument),*) }
    };
}
pub(crate) use call;

/// Calls a function of the driver and returns the value that it writes.
macro_rules! get {
    ($type:ty: $name:ident(_ $(, $argument:expr)* $(,)?)) => {{
        let mut made = std::mem::MaybeUninit::<$type>::zeroed();
        good!($name(made.as_mut_ptr() $(, $argument)*));
        // SAFETY: numbers and handles may be zero, and the call succeeded.
        unsafe { made.assume_init() }
    }};
}
pub(crate) use get;

/// Loads the fake, and makes the first device's context current.
pub(crate) fn start() -> Fake {
    let fake = Fake::load();
    // SAFETY: the addresses are only compared.
    let theirs = unsafe { *sys::culib().get::<*const c_void>(b"cuInit").unwrap() };
    assert_eq!(fake.address("cuInit"), theirs, "cudarc has another driver");
    good!(cuInit(0));
    context(0);
    fake
}

pub(crate) fn context(device: i32) -> CUcontext {
    let context = get!(CUcontext: cuDevicePrimaryCtxRetain(_, device));
    good!(cuCtxSetCurrent(context));
    context
}

/// Creates a stream, with CU_STREAM_NON_BLOCKING unless `blocking`.
pub(crate) fn stream(blocking: bool) -> CUstream {
    get!(CUstream: cuStreamCreate(_, u32::from(!blocking)))
}

pub(crate) fn allocate(size: usize) -> CUdeviceptr {
    get!(CUdeviceptr: cuMemAlloc_v2(_, size))
}

pub(crate) fn pinned(size: usize) -> &'static mut [u8] {
    let at = get!(*mut c_void: cuMemHostAlloc(_, size, 0));
    // SAFETY: the memory is new, and no test frees memory that it uses.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), size) }
}

pub(crate) fn upload(to: CUdeviceptr, bytes: &[u8]) {
    good!(cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()));
    good!(cuCtxSynchronize());
}

/// Copies from the device once all work of its streams is done.
pub(crate) fn download(from: CUdeviceptr, size: usize) -> Vec<u8> {
    good!(cuCtxSynchronize());
    let mut bytes = vec![0; size];
    good!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, size));
    bytes
}

/// Returns a function of a module that has the kernels.
pub(crate) fn function(name: &str) -> CUfunction {
    let image = c".version 8.0\n.visible .entry walk_16(\n)";
    let module = get!(CUmodule: cuModuleLoadData(_, image.as_ptr().cast()));
    let name = CString::new(name).unwrap();
    get!(CUfunction: cuModuleGetFunction(_, module, name.as_ptr()))
}

pub(crate) fn launch<T>(function: CUfunction, blocks: u32, threads: u32, on: CUstream, parameter: &T) {
    let mut parameters = [(&raw const *parameter).cast_mut().cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    good!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, on, parameters, null_mut()));
}
