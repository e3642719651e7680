//! Memory with handles: it can be mapped at chosen addresses and in other processes.

use std::env;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::ptr::null_mut;

use cudarc::driver::sys::*;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::program::*;

/// The variable that passes the descriptor's number to the other process.
const DESCRIPTOR: &str = "FAKE_CUDA_TEST_DESCRIPTOR";

const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

const SIZE: usize = 4 << 20;

fn location() -> CUmemLocation {
    let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemLocation { type_, id: 0 }
}

fn create() -> CUmemGenericAllocationHandle {
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX,
        location: location(),
        win32HandleMetaData: null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    assert_eq!(get!(usize: cuMemGetAllocationGranularity(_, &properties, option)), 2 << 20);
    assert_eq!(call!(cuMemCreate(&mut 0, SIZE - 1, &properties, 0)), INVALID);
    get!(CUmemGenericAllocationHandle: cuMemCreate(_, SIZE, &properties, 0))
}

fn allow(address: CUdeviceptr, size: usize, flags: CUmemAccess_flags) {
    let access = CUmemAccessDesc { location: location(), flags };
    good!(cuMemSetAccess(address, size, &access, 1));
}

const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
const WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

#[test]
fn memory_is_mapped_and_unmapped() {
    run("shared::memory_is_mapped_and_unmapped", &[], || {
        let fake = start();
        let (one, other) = (create(), create());
        let address = get!(CUdeviceptr: cuMemAddressReserve(_, 3 * SIZE, 0, 0, 0));
        let fill = |from, size| call!(cuMemsetD8Async(from, 1, size, null_mut()));
        assert_eq!(fill(address, 1), INVALID);
        good!(cuMemMap(address, SIZE, 0, one, 0));
        assert_eq!(fill(address, 1), INVALID);
        assert_eq!(call!(cuMemMap(address, SIZE, 0, other, 0)), INVALID);
        assert_eq!(call!(cuMemMap(address + 3 * SIZE as u64, SIZE, 0, other, 0)), INVALID);
        allow(address, SIZE, READ);
        assert_eq!(fill(address, 1), INVALID);
        good!(cuMemMap(address + SIZE as u64, SIZE, 0, other, 0));
        allow(address, 2 * SIZE, WRITE);
        // A copy may cross several mappings, even if their handles are released.
        good!(cuMemRelease(one));
        good!(cuMemRelease(other));
        assert_eq!(call!(cuMemRelease(one)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(fill(address, 2 * SIZE), CUresult::CUDA_SUCCESS);
        assert_eq!(fill(address, 2 * SIZE + 1), INVALID);
        assert_eq!(download(address + 100, 2 * SIZE - 100), vec![1; 2 * SIZE - 100]);
        assert_eq!(call!(cuMemAddressFree(address, 3 * SIZE)), INVALID);
        assert_eq!(call!(cuMemUnmap(address, SIZE / 2)), INVALID);
        good!(cuMemUnmap(address, 2 * SIZE));
        assert_eq!(fill(address, 1), INVALID);
        good!(cuMemAddressFree(address, 3 * SIZE));
        assert_eq!(fake.live(), 0);
    });
}

fn map(handle: CUmemGenericAllocationHandle) -> CUdeviceptr {
    let address = get!(CUdeviceptr: cuMemAddressReserve(_, SIZE, 0, 0, 0));
    good!(cuMemMap(address, SIZE, 0, handle, 0));
    allow(address, SIZE, WRITE);
    address
}

#[test]
fn another_process_shares_memory() {
    run("shared::another_process_shares_memory", &[], || {
        start();
        let handle = create();
        let address = map(handle);
        good!(cuMemsetD8Async(address, 1, SIZE, null_mut()));
        good!(cuCtxSynchronize());
        let mut descriptor: RawFd = -1;
        good!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0));
        // The mapping stays valid without the handle.
        good!(cuMemRelease(handle));
        // SAFETY: the export created it, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        fcntl_setfd(&descriptor, FdFlags::empty()).unwrap();
        let status = Command::new(env::current_exe().unwrap())
            .args(["shared::other_process", "--exact", "--ignored", "--nocapture"])
            .env(DESCRIPTOR, std::os::fd::AsRawFd::as_raw_fd(&descriptor).to_string())
            .status();
        assert!(status.unwrap().success());
        assert_eq!(download(address, SIZE), [vec![2; SIZE / 2], vec![1; SIZE / 2]].concat());
    });
}

fn import(descriptor: RawFd, handle: &mut CUmemGenericAllocationHandle) -> CUresult {
    call!(cuMemImportFromShareableHandle(handle, descriptor as usize as *mut c_void, POSIX))
}

#[test]
#[ignore = "the other half of another_process_shares_memory"]
fn other_process() {
    run("shared::other_process", &[], || {
        start();
        let descriptor: RawFd = env::var(DESCRIPTOR).unwrap().parse().unwrap();
        let mut handle = 0;
        assert_eq!(import(descriptor, &mut handle), CUresult::CUDA_SUCCESS);
        // SAFETY: this process inherited it for the import, and imported memory does not need it.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let address = map(handle);
        assert_eq!(download(address, SIZE), vec![1; SIZE]);
        good!(cuMemsetD8Async(address, 2, SIZE / 2, null_mut()));
        good!(cuCtxSynchronize());
    });
}

#[test]
fn foreign_descriptors_are_refused() {
    run("shared::foreign_descriptors_are_refused", &[], || {
        start();
        let foreign = rustix::fs::memfd_create("foreign", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&foreign);
        assert_eq!(import(number, &mut 0), INVALID);
        assert_eq!(import(9999, &mut 0), INVALID);
        assert_eq!(import(-1, &mut 0), INVALID);
        // The refused descriptor is still open.
        // SAFETY: `foreign` keeps it open.
        let open = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::fs::fstat(open).unwrap();
    });
}
