//! Requested faults, and objects that a program leaves behind.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys::*;

use crate::program::*;

#[test]
fn a_call_fails_on_command() {
    let variables = [("FAKE_CUDA_FAIL", "cuMemAlloc_v2:3:2")];
    run("faults::a_call_fails_on_command", &variables, || {
        let fake = start();
        let (memory, _) = (allocate(1), allocate(1));
        assert_eq!(call!(cuMemAlloc_v2(&mut 0, 1)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        allocate(1);
        fake.fail("cuMemAlloc_v2", 2, CUresult::CUDA_ERROR_UNKNOWN as u32);
        allocate(1);
        assert_eq!(call!(cuMemAlloc_v2(&mut 0, 1)), CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(fake.calls("cuMemAlloc_v2"), 6);
        assert_eq!(fake.live(), 4);
        // A sticky error loses the context and wakes threads that wait in it.
        let lost = CUresult::CUDA_ERROR_LAUNCH_FAILED;
        fake.hold(true);
        good!(cuMemsetD8Async(memory, 0, 1, null_mut()));
        fake.fail("cuStreamCreate", 1, lost as u32);
        assert_eq!(call!(cuStreamCreate(&mut null_mut(), 0)), lost);
        assert_eq!(call!(cuStreamSynchronize(null_mut())), lost);
        assert_eq!(call!(cuMemFree_v2(memory)), lost);
        assert_eq!(call!(cuMemAlloc_v2(&mut 0, 1)), lost);
    });
}

#[test]
fn a_program_that_cleans_up_leaves_nothing() {
    run("faults::a_program_that_cleans_up_leaves_nothing", &[], || {
        let fake = start();
        assert_eq!(fake.live(), 0);
        let memory = allocate(1);
        let made = stream(true);
        let event = get!(CUevent: cuEventCreate(_, 0));
        let image = c".entry walk_16";
        let module = get!(CUmodule: cuModuleLoadData(_, image.as_ptr().cast()));
        let mut bytes = [0u8; 100];
        let bytes: *mut c_void = bytes.as_mut_ptr().cast();
        good!(cuMemHostRegister_v2(bytes, 100, 0));
        let host: *mut c_void = pinned(1).as_mut_ptr().cast();
        good!(cuMemsetD8Async(memory, 0, 1, null_mut()));
        assert_eq!(fake.live(), 6);
        good!(cuMemFreeHost(host));
        good!(cuMemHostUnregister(bytes));
        good!(cuModuleUnload(module));
        good!(cuEventDestroy_v2(event));
        good!(cuStreamDestroy_v2(made));
        good!(cuMemFree_v2(memory));
        assert_eq!(fake.live(), 0);
        let bad = CUresult::CUDA_ERROR_INVALID_HANDLE;
        assert_eq!(call!(cuModuleUnload(module)), bad);
        assert_eq!(call!(cuEventRecord(event, null_mut())), bad);
        assert_eq!(call!(cuStreamDestroy_v2(made)), bad);
        let image = c".entry other";
        let code = call!(cuModuleLoadData(&mut null_mut(), image.as_ptr().cast()));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    });
}

/// Tests get a library without some or all symbols in this way.
#[test]
fn a_variant_lacks_symbols() {
    let (_folder, variant) = fake_cuda::without(&fake_cuda::library(), &["cuMemCreate", "cuMemMap"]);
    // SAFETY: loading the fake runs nothing.
    let lacking = unsafe { libloading::Library::new(&variant) }.unwrap();
    // SAFETY: the functions are not called.
    let has = |name: &str| unsafe { lacking.get::<*const c_void>(name) }.is_ok();
    assert!(!has("cuMemCreate") && !has("cuMemMap"));
    assert!(has("cuMemUnmap") && has("cuInit"));

    let Some((_folder, file)) = fake_cuda::empty() else {
        return;
    };
    // SAFETY: the library is empty.
    let library = unsafe { libloading::Library::new(file) }.unwrap();
    // SAFETY: it is not called.
    assert!(unsafe { library.get::<*const c_void>("cuInit") }.is_err());
}
