//! Values on their way to C, in buffers of C's.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};

use super::refusal::Refusal;
use crate::error::StoreError;

/// Where the caller wants a buffer and its length.
#[derive(Clone, Copy)]
pub(super) struct Output {
    out: NonNull<*mut u8>,
    out_len: NonNull<usize>,
}

impl Output {
    /// Takes both pointers and puts NULL and 0 there, which is what the caller finds unless
    /// [`give`](Self::give) is reached.
    ///
    /// # Safety
    /// Each is NULL or may be written until the call returns.
    pub(super) unsafe fn new(out: *mut *mut u8, out_len: *mut usize) -> Result<Self, Refusal> {
        let (out, out_len) = (NonNull::new(out), NonNull::new(out_len));
        // SAFETY: not NULL, so they may be written, as the caller promises.
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
        // A buffer for no bytes has one: malloc(0) may be NULL, and consumers follow the pointer.
        let len = value.len().max(1);
        // SAFETY: malloc may be called with any length.
        let Some(buffer) = NonNull::new(unsafe { libc::malloc(len) }.cast::<u8>()) else {
            let full = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(StoreError::io(format!("allocate {len} bytes"))(full).into());
        };
        // SAFETY: the buffer is new and has room; the pointers may be written, as `new`'s caller promised.
        unsafe {
            buffer.copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
            self.out.write(buffer.as_ptr());
            self.out_len.write(value.len());
        }
        Ok(0)
    }
}
