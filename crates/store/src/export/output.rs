//! Output values in buffers of C's malloc.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};

use super::refusal::Refusal;
use crate::error::StoreError;

#[derive(Clone, Copy)]
pub(super) struct Output {
    out: NonNull<*mut u8>,
    out_len: NonNull<usize>,
}

impl Output {
    /// Checks both pointers and sets them to NULL and 0. These values stay unless [`give`](Self::give) is called.
    ///
    /// # Safety
    /// Each pointer is NULL or valid for writes until the call returns.
    pub(super) unsafe fn new(out: *mut *mut u8, out_len: *mut usize) -> Result<Self, Refusal> {
        let (out, out_len) = (NonNull::new(out), NonNull::new(out_len));
        // SAFETY: they are not NULL, so the caller promises that they are valid for writes.
        unsafe {
            if let Some(out) = out {
                out.write(ptr::null_mut());
            }
            if let Some(out_len) = out_len {
                out_len.write(0);
            }
        }
        match (out, out_len) {
            (Some(out), Some(out_len)) => Ok(Self { out, out_len }),
            (None, _) => Err(Refusal::Argument("`out` is NULL".into())),
            (_, None) => Err(Refusal::Argument("`out_len` is NULL".into())),
        }
    }

    /// Copies `value` into a buffer that the caller will free.
    pub(super) fn give(self, value: &[u8]) -> Result<c_int, Refusal> {
        // Allocate at least one byte: malloc(0) may return NULL, and consumers dereference the pointer.
        let len = value.len().max(1);
        // SAFETY: malloc may be called with any length.
        let Some(buffer) = NonNull::new(unsafe { libc::malloc(len) }.cast::<u8>()) else {
            let full = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(StoreError::io(format!("allocate {len} bytes"))(full).into());
        };
        // SAFETY: the buffer is new and large enough; `new`'s caller promised that the pointers are valid for writes.
        unsafe {
            buffer.copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
            self.out.write(buffer.as_ptr());
            self.out_len.write(value.len());
        }
        Ok(0)
    }
}
