//! The result codes that the fake can return.

use std::ffi::CStr;

/// A `CUresult` as an integer, since tests may request any number.
pub(crate) type Code = u32;

pub(crate) type Result<T = ()> = std::result::Result<T, Code>;

macro_rules! codes {
    ($($name:ident $text:literal,)*) => {
        $(
            #[allow(dead_code, reason = "some codes are only named by tests")]
            pub(crate) const $name: Code = cudarc::driver::sys::CUresult::$name as Code;
        )*

        /// Each code with its name and the text of `cuGetErrorString`.
        const NAMES: &[(Code, &CStr, &CStr)] = &[$((
            $name,
            // The only NUL is the one that ends the literal.
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            },
            $text,
        ),)*];
    };
}

codes! {
    CUDA_SUCCESS c"no error",
    CUDA_ERROR_INVALID_VALUE c"invalid argument",
    CUDA_ERROR_OUT_OF_MEMORY c"out of memory",
    CUDA_ERROR_NOT_INITIALIZED c"initialization error",
    CUDA_ERROR_DEINITIALIZED c"driver shutting down",
    CUDA_ERROR_NO_DEVICE c"no CUDA-capable device is detected",
    CUDA_ERROR_INVALID_DEVICE c"invalid device ordinal",
    CUDA_ERROR_INVALID_IMAGE c"device kernel image is invalid",
    CUDA_ERROR_INVALID_CONTEXT c"invalid device context",
    CUDA_ERROR_NO_BINARY_FOR_GPU c"no kernel image is available for execution on the device",
    CUDA_ERROR_ECC_UNCORRECTABLE c"uncorrectable ECC error encountered",
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED c"peer access is not supported between these two devices",
    CUDA_ERROR_INVALID_PTX c"a PTX JIT compilation failed",
    CUDA_ERROR_NVLINK_UNCORRECTABLE c"uncorrectable NVLink error detected during the execution",
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION c"the provided PTX was compiled with an unsupported toolchain.",
    CUDA_ERROR_OPERATING_SYSTEM c"OS call failed or operation not supported on this OS",
    CUDA_ERROR_INVALID_HANDLE c"invalid resource handle",
    CUDA_ERROR_NOT_FOUND c"named symbol not found",
    CUDA_ERROR_NOT_READY c"device not ready",
    CUDA_ERROR_ILLEGAL_ADDRESS c"an illegal memory access was encountered",
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES c"too many resources requested for launch",
    CUDA_ERROR_LAUNCH_TIMEOUT c"the launch timed out and was terminated",
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED c"peer access is already enabled",
    CUDA_ERROR_CONTEXT_IS_DESTROYED c"context is destroyed",
    CUDA_ERROR_ASSERT c"device-side assert triggered",
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED c"part or all of the requested memory range is already mapped",
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED c"pointer does not correspond to a registered memory region",
    CUDA_ERROR_HARDWARE_STACK_ERROR c"hardware stack error",
    CUDA_ERROR_ILLEGAL_INSTRUCTION c"an illegal instruction was encountered",
    CUDA_ERROR_MISALIGNED_ADDRESS c"misaligned address",
    CUDA_ERROR_INVALID_ADDRESS_SPACE c"operation not supported on global/shared address space",
    CUDA_ERROR_INVALID_PC c"invalid program counter",
    CUDA_ERROR_LAUNCH_FAILED c"unspecified launch failure",
    CUDA_ERROR_NOT_PERMITTED c"operation not permitted",
    CUDA_ERROR_NOT_SUPPORTED c"operation not supported",
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED c"operation not permitted when stream is capturing",
    CUDA_ERROR_UNKNOWN c"unknown error",
}

pub(crate) fn is_sticky(code: Code) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721)
}

pub(crate) fn names(code: Code) -> Option<(&'static CStr, &'static CStr)> {
    let known = NAMES.iter().find(|(known, ..)| *known == code)?;
    Some((known.1, known.2))
}
