//! Addresses, and the code that may use them.

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::ptr::{null, null_mut};

use cudarc::driver::sys::*;

use crate::program::*;

const SIZE: usize = 10_000;

#[test]
fn the_host_cannot_touch_device_memory() {
    let status = status("memory::the_host_cannot_touch_device_memory", &[], || {
        start();
        let memory = allocate(SIZE) as *const u8;
        // SAFETY: the access is invalid. The test expects the process to die of it.
        let byte = unsafe { memory.read_volatile() };
        println!("read {byte}");
    });
    assert_eq!(status.signal(), Some(rustix::process::Signal::SEGV.as_raw()), "{status}");
}

#[test]
fn addresses_are_checked() {
    run("memory::addresses_are_checked", &[], || {
        start();
        let (memory, bytes) = (allocate(SIZE), pinned(SIZE));
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let all: Vec<u8> = (0..SIZE).map(|index| index as u8).collect();
        upload(memory, &all);
        assert_eq!(download(memory + 1, SIZE - 1), all[1..]);
        assert_eq!(call!(cuMemsetD8Async(memory + 1, 0, SIZE, null_mut())), invalid);
        assert_eq!(call!(cuMemsetD8Async(memory - 1, 0, 2, null_mut())), invalid);
        assert_eq!(call!(cuMemsetD8Async(all.as_ptr() as u64, 0, 1, null_mut())), invalid);
        let pointer = bytes.as_mut_ptr();
        assert_eq!(call!(cuMemcpyDtoH_v2(pointer.wrapping_add(1).cast(), memory, SIZE)), invalid);
        assert_eq!(call!(cuMemcpyHtoD_v2(memory, memory as *const c_void, 1)), invalid);
        // The device can use pinned memory, too.
        good!(cuMemcpyDtoDAsync_v2(pointer as u64, memory, SIZE, null_mut()));
        good!(cuCtxSynchronize());
        assert_eq!(bytes, all);
        good!(cuMemFree_v2(memory));
        assert_eq!(call!(cuMemFree_v2(memory)), invalid);
        assert_eq!(call!(cuMemsetD8Async(memory, 0, 1, null_mut())), invalid);
        assert_eq!(call!(cuMemAlloc_v2(&mut 0, 17 << 30)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    });
}

#[test]
fn host_memory_is_registered_once() {
    run("memory::host_memory_is_registered_once", &[], || {
        start();
        let mut bytes = vec![0u8; SIZE];
        let pointer: *mut c_void = bytes.as_mut_ptr().cast();
        let unregistered = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        assert_eq!(call!(cuMemHostUnregister(pointer)), unregistered);
        good!(cuMemHostRegister_v2(pointer, SIZE, 0));
        let again = call!(cuMemHostRegister_v2(pointer.wrapping_byte_add(SIZE - 1), 1, 0));
        assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        let address = get!(CUdeviceptr: cuMemHostGetDevicePointer_v2(_, pointer, 0));
        assert_eq!(address, pointer as u64);
        good!(cuMemHostUnregister(pointer));
        assert_eq!(call!(cuMemHostUnregister(pointer)), unregistered);
        // Memory that the driver allocated is not registered memory.
        let pointer = pinned(SIZE).as_mut_ptr().cast();
        assert_eq!(call!(cuMemHostUnregister(pointer)), unregistered);
        good!(cuMemFreeHost(pointer));
        assert_eq!(call!(cuMemFreeHost(pointer)), CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn pointers_have_attributes() {
    run("memory::pointers_have_attributes", &[("FAKE_CUDA_DEVICES", "2")], || {
        start();
        let second = context(1);
        let memory = allocate(SIZE);
        use CUpointer_attribute::*;
        let mut wanted = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_CONTEXT,
        ];
        let mut ask = |address| {
            let mut found = [0u64; 6];
            let mut places = found.each_mut().map(|place| (&raw mut *place).cast::<c_void>());
            good!(cuPointerGetAttributes(6, wanted.as_mut_ptr(), places.as_mut_ptr(), address));
            found
        };
        let size = SIZE as u64;
        assert_eq!(ask(memory + 5), [2, 1, memory, size, 0, second as u64]);
        let host = pinned(SIZE).as_ptr() as u64;
        assert_eq!(ask(host), [1, 1, host, size, 0, second as u64]);
        let managed = get!(CUdeviceptr: cuMemAllocManaged(_, SIZE, 1));
        assert_eq!(ask(managed), [2, 1, managed, size, 1, second as u64]);
        upload(managed, &[7; SIZE]);
        // SAFETY: this many bytes were allocated, and nothing else runs.
        let seen = unsafe { std::slice::from_raw_parts(managed as *const u8, SIZE) };
        assert_eq!(seen, [7; SIZE]);
        good!(cuMemFree_v2(managed));
        let pageable = &raw const size as u64;
        // CU_DEVICE_INVALID is a signed int, -2.
        assert_eq!(ask(pageable), [0, u64::from(-2i32 as u32), 0, 0, 0, 0]);
        let kind = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let mut found = 0u32;
        let code = call!(cuPointerGetAttribute((&raw mut found).cast(), kind, pageable));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
        let (mut base, mut length) = (0, 0);
        good!(cuMemGetAddressRange_v2(&mut base, &mut length, memory + 1));
        assert_eq!((base, length), (memory, SIZE));
    });
}

#[test]
fn contexts_are_needed() {
    run("memory::contexts_are_needed", &[("FAKE_CUDA_DEVICES", "3")], || {
        let fake = Fake::load();
        let mut count = 0;
        assert_eq!(call!(cuDeviceGetCount(&mut count)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
        good!(cuInit(0));
        assert_eq!(get!(i32: cuDeviceGetCount(_)), 3);
        assert_eq!(get!(i32: cuDriverGetVersion(_)), 12080);
        let uuids = [0, 1, 2].map(|device| get!(CUuuid: cuDeviceGetUuid_v2(_, device)).bytes);
        assert!(uuids[0] != uuids[1] && uuids[1] != uuids[2]);
        assert_eq!(call!(cuDeviceGet(&mut count, 3)), CUresult::CUDA_ERROR_INVALID_DEVICE);
        let mut name = [1; 16];
        good!(cuDeviceGetName(name.as_mut_ptr(), 16, 0));
        assert_eq!(name[..9], b"Fake GPU\0".map(|byte| byte as std::ffi::c_char));
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        assert_eq!(get!(i32: cuDeviceGetAttribute(_, attribute, 2)), 132);

        let missing = CUresult::CUDA_ERROR_INVALID_CONTEXT;
        assert_eq!(call!(cuMemAlloc_v2(&mut 0, 1)), missing);
        assert_eq!(call!(cuCtxSetCurrent(3 as _)), missing);
        let first = context(0);
        let second = get!(CUcontext: cuDevicePrimaryCtxRetain(_, 1));
        good!(cuCtxPushCurrent_v2(second));
        assert_eq!(get!(i32: cuCtxGetDevice(_)), 1);
        let memory = allocate(1);
        assert_eq!(get!(CUcontext: cuCtxPopCurrent_v2(_)), second);
        assert_eq!(get!(CUcontext: cuCtxGetCurrent(_)), first);
        // Releasing a context frees its memory.
        assert_eq!(fake.live(), 1);
        good!(cuDevicePrimaryCtxRelease_v2(1));
        assert_eq!(fake.live(), 0);
        assert_eq!(call!(cuMemFree_v2(memory)), CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut text = null();
        good!(cuGetErrorName(missing, &mut text));
        // SAFETY: the driver's names are static.
        let text = unsafe { std::ffi::CStr::from_ptr(text) };
        assert_eq!(text, c"CUDA_ERROR_INVALID_CONTEXT");
        // After a fork the child cannot use the driver.
        // SAFETY: the child calls only the fake, which takes no lock there, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let codes = [call!(cuInit(0)), call!(cuMemAlloc_v2(&mut 0, 1))];
            let right = codes == [CUresult::CUDA_ERROR_NOT_INITIALIZED; 2];
            // SAFETY: nothing has to be cleaned up.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 1;
        // SAFETY: it is our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    });
}
