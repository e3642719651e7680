//! The host's view of device memory, with the real location of its bytes.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::code::*;

/// A range of address space for device memory. Parts without memory read as zeros.
pub(crate) struct View {
    whole: *mut c_void,
    length: usize,
    start: usize,
}

// SAFETY: it owns a mapping, which belongs to no thread.
unsafe impl Send for View {}
// SAFETY: its methods change mappings only, which is the kernel's to serialize.
unsafe impl Sync for View {}

/// Creates memory of fixed size that can be shared by its descriptor.
pub(crate) fn backing(name: &str, size: u64) -> Result<OwnedFd> {
    let make = || {
        let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, size)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(memory)
    };
    make().map_err(|_: rustix::io::Errno| CUDA_ERROR_OUT_OF_MEMORY)
}

impl View {
    /// Reserves address space that begins at a multiple of `alignment`, a power of two.
    pub(crate) fn reserve(size: usize, alignment: usize) -> Result<Self> {
        let length = size.checked_add(alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the kernel likes.
        let whole = unsafe { mmap_anonymous(null_mut(), length, ProtFlags::READ, flags) };
        let whole = whole.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { whole, length, start: (whole as usize).next_multiple_of(alignment) })
    }

    pub(crate) fn allocate(size: usize) -> Result<Self> {
        let view = Self::reserve(size, 4096)?;
        view.put(0, size, rustix::fd::AsFd::as_fd(&backing("fake-cuda", size as u64)?))?;
        Ok(view)
    }

    pub(crate) fn start(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn put(&self, offset: usize, size: usize, memory: BorrowedFd) -> Result {
        let at = (self.start + offset) as *mut c_void;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the part is inside of this view; nothing but device accesses, which the lock of memory keeps
        // out, knows its addresses.
        let put = unsafe { mmap(at, size, ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0) };
        put.map(drop).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn clear(&self, offset: usize, size: usize) {
        let at = (self.start + offset) as *mut c_void;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `put`.
        let cleared = unsafe { mmap_anonymous(at, size, ProtFlags::READ, flags) };
        cleared.expect("it was mapped before");
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping is this view's, and the region that named it is gone.
        let unmapped = unsafe { munmap(self.whole, self.length) };
        unmapped.expect("it was mapped");
    }
}
