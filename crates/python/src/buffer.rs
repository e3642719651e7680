//! The buffer protocol: memory of a Python object that stays in place.
//!
//! PyO3 offers it from Python 3.11 on, when it became part of the stable ABI. CPython 3.10 has the same functions, and
//! its `Py_buffer` is the one that was declared stable then.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

/// CPython's `Py_buffer`.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// Requests contiguous bytes in C order, of any format.
const SIMPLE: c_int = 0;
/// Requests writable bytes.
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(exporter: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// The memory of an object, kept in place until this is dropped. Dropping it takes the interpreter's lock.
pub(crate) struct Buffer {
    /// Boxed, since exporters may store pointers into the view itself.
    view: Box<PyBuffer>,
}

// SAFETY: nothing is done with the view but under the interpreter's lock, which `new` and `drop` have.
unsafe impl Send for Buffer {}
// SAFETY: all that is read through a shared reference are two numbers that never change.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Errors
    /// `TypeError` if the object has no buffer; the object's own error if its bytes are not contiguous, or not writable
    /// although `written` demands that.
    pub(crate) fn new(object: &Bound<'_, PyAny>, written: bool) -> PyResult<Self> {
        let mut view = Box::new(PyBuffer {
            buf: null_mut(),
            obj: null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: null_mut(),
            shape: null_mut(),
            strides: null_mut(),
            suboffsets: null_mut(),
            internal: null_mut(),
        });
        let flags = if written { WRITABLE } else { SIMPLE };
        // SAFETY: the object is alive and the interpreter's lock is held, which `Bound` stands for; the view is ours,
        // and whatever is written to it stays in its box.
        match unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
            0 => Ok(Self { view }),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.view.buf.expose_provenance()
    }

    pub(crate) fn len(&self) -> usize {
        self.view.len.unsigned_abs()
    }

    /// Copies the bytes. If another thread writes them at the same time, the copy may contain some of the new bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let len = self.len();
        let mut copy: Vec<u8> = Vec::with_capacity(len);
        if len > 0 {
            // SAFETY: the exporter keeps so many bytes there while the view is held, and the copy has room for them.
            unsafe {
                copy.as_mut_ptr().copy_from_nonoverlapping(self.view.buf.cast::<u8>(), len);
                copy.set_len(len);
            }
        }
        copy
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Without an interpreter nothing can move the bytes any more.
        let _ = Python::try_attach(|_| {
            // SAFETY: `new` has filled it, and it is released once, here.
            unsafe { PyBuffer_Release(&raw mut *self.view) }
        });
    }
}
