//! A library's output buffers: checked, owned, and freed once.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::slice;

use bytes::Bytes;

use super::error::CallError;

/// Calls a `get` function and takes over its output. Any negative code is [`CallError::Refused`], since its meaning
/// depends on the library.
///
/// # Safety
/// If `get` returns 0, its outputs hold a malloc'd buffer that belongs to the caller, or NULL.
pub(super) unsafe fn take(get: impl FnOnce(*mut *mut u8, *mut usize) -> c_int) -> Result<Bytes, CallError> {
    let (mut out, mut len) = (ptr::null_mut(), 0);
    match get(&raw mut out, &raw mut len) {
        0 => {}
        // After an error the output is unspecified, so it is not freed.
        code if code < 0 => return Err(CallError::Refused { code }),
        code => return Err(CallError::Code { code }),
    }
    let Some(start) = NonNull::new(out) else {
        return match len {
            0 => Ok(Bytes::new()),
            _ => Err(CallError::NoBuffer { len }),
        };
    };
    if isize::try_from(len).is_err() {
        // Do not free it: a library with a wrong length may also be wrong about the owner.
        return Err(CallError::Length { len });
    }
    Ok(Bytes::from_owner(Malloced { start, len }))
}

struct Malloced {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is plain memory without other pointers to it, and any thread may free malloc'd memory.
unsafe impl Send for Malloced {}
// SAFETY: shared access only reads.
unsafe impl Sync for Malloced {}

impl AsRef<[u8]> for Malloced {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `take`'s caller promised that the library returned a buffer of that many bytes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Malloced {
    fn drop(&mut self) {
        // SAFETY: `take`'s caller promised that it comes from malloc and that this is its only owner.
        unsafe { libc::free(self.start.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(code: c_int, out: *mut u8, out_len: usize) -> Result<Bytes, CallError> {
        // SAFETY: the tests below give NULL, a buffer of malloc, or a length that is refused.
        unsafe {
            take(|at, at_len| {
                *at = out;
                *at_len = out_len;
                code
            })
        }
    }

    #[test]
    fn outputs_that_cannot_be_are_errors() {
        let wild = ptr::dangling_mut();
        assert_eq!(taken(0, ptr::null_mut(), 7), Err(CallError::NoBuffer { len: 7 }));
        for len in [usize::MAX, isize::MAX as usize + 1] {
            assert_eq!(taken(0, wild, len), Err(CallError::Length { len }));
        }
        assert_eq!(taken(0, ptr::null_mut(), 0), Ok(Bytes::new()));
        for code in [1, 7] {
            assert_eq!(taken(code, wild, 3), Err(CallError::Code { code }));
        }
    }

    #[test]
    fn after_a_negative_code_the_output_is_left_alone() {
        let wild = ptr::dangling_mut();
        for code in [-1, -2, -5, -99, c_int::MIN] {
            assert_eq!(taken(code, wild, 3), Err(CallError::Refused { code }));
        }
    }

    #[test]
    fn the_buffer_itself_is_lent_out() {
        // SAFETY: malloc may be called with any length.
        let out = unsafe { libc::malloc(3) }.cast::<u8>();
        // SAFETY: it has three bytes.
        unsafe { out.copy_from_nonoverlapping(b"abc".as_ptr(), 3) };
        let bytes = taken(0, out, 3).unwrap();
        assert_eq!((&bytes[..], bytes.as_ptr()), (&b"abc"[..], out.cast_const()));
    }
}
