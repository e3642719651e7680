//! `kv_store_v1` as C sees it: `include/kv_store_v1.h` in Rust.
//!
//! A backend is a shared object `libkv_store_<scheme>.so` that exports one symbol,
//! [`GET_VTABLE`], of type [`GetVtable`]. Inputs are borrowed for the call; outputs come from C `malloc` and
//! belong to the caller; a handle may be used from several threads at once; nothing unwinds across.
//!
//! On a version 1 table, `prefetch_chunks` may be NULL or *not there at all*: 64 bytes, and nothing mapped
//! behind them. Whoever reads a foreign table therefore reads its fields through raw pointers and never forms
//! a reference to the whole of it; [`crate::loader`] does so.

use std::ffi::{CStr, c_char, c_int, c_void};

/// The exported symbol.
pub const GET_VTABLE: &CStr = c"kv_store_get_vtable";

/// Version of a table without `prefetch_chunks`.
pub const VERSION_1: u32 = 1;

/// Version of a table with `prefetch_chunks`.
pub const VERSION_2: u32 = 2;

/// `put_chunk`: stored.
pub const STORED: c_int = 0;

/// `put_chunk`: was there already.
pub const ALREADY_THERE: c_int = 1;

/// `get_*`: not there; `-ENOENT`. The contract asks for a negative code, for this and for errors alike; with
/// these three, the backends of this crate say which it is. A consumer that knows only the sign loses nothing.
pub const MISSING: c_int = -2;

/// The store failed; `-EIO`. One line on stderr says why.
pub const ERROR: c_int = -5;

/// An argument is none: a NULL pointer, a length out of range, a name that is not UTF-8; `-EINVAL`.
pub const INVALID: c_int = -22;

/// Length in bytes of a table of version 1, which ends after `delete_manifest`.
pub const VERSION_1_LEN: usize = 64;

/// An open store, as its backend represents it.
pub type Handle = *mut c_void;

/// Type of the exported symbol: the table, which lives as long as the library is loaded.
pub type GetVtable = unsafe extern "C" fn() -> *const Vtable;

/// `const char *uri` to a handle, or NULL with the reason on stderr.
pub type Open = unsafe extern "C" fn(uri: *const c_char) -> Handle;

/// Closes a handle.
pub type Close = unsafe extern "C" fn(handle: Handle);

/// 0 stored, 1 was there already, negative error.
pub type PutChunk =
    unsafe extern "C" fn(handle: Handle, hash: *const u8, hash_len: usize, data: *const u8, data_len: usize) -> c_int;

/// 0, negative for an error or a chunk that is not there.
pub type GetChunk = unsafe extern "C" fn(
    handle: Handle,
    hash: *const u8,
    hash_len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int;

/// 0, negative error.
pub type PutManifest =
    unsafe extern "C" fn(handle: Handle, name: *const c_char, data: *const u8, data_len: usize) -> c_int;

/// 0, negative for an error or a manifest that is not there.
pub type GetManifest =
    unsafe extern "C" fn(handle: Handle, name: *const c_char, out: *mut *mut u8, out_len: *mut usize) -> c_int;

/// 0, also when it was not there; negative error.
pub type DeleteManifest = unsafe extern "C" fn(handle: Handle, name: *const c_char) -> c_int;

/// `n_hashes` hashes of `hash_len` bytes laid end to end. 0, negative error, which is never fatal.
pub type PrefetchChunks =
    unsafe extern "C" fn(handle: Handle, hashes: *const u8, hash_len: usize, n_hashes: usize) -> c_int;

/// `kv_store_vtable`. Every function is optional in the type because a foreign table may hold NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the types say what each is")]
pub struct Vtable {
    pub version: u32,
    pub open: Option<Open>,
    pub close: Option<Close>,
    pub put_chunk: Option<PutChunk>,
    pub get_chunk: Option<GetChunk>,
    pub put_manifest: Option<PutManifest>,
    pub get_manifest: Option<GetManifest>,
    pub delete_manifest: Option<DeleteManifest>,
    pub prefetch_chunks: Option<PrefetchChunks>,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    #[test]
    fn the_table_lies_as_the_contract_says() {
        assert_eq!((size_of::<Vtable>(), align_of::<Vtable>()), (72, 8));
        let offsets = [
            offset_of!(Vtable, version),
            offset_of!(Vtable, open),
            offset_of!(Vtable, close),
            offset_of!(Vtable, put_chunk),
            offset_of!(Vtable, get_chunk),
            offset_of!(Vtable, put_manifest),
            offset_of!(Vtable, get_manifest),
            offset_of!(Vtable, delete_manifest),
            offset_of!(Vtable, prefetch_chunks),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 48, 56, 64]);
        assert_eq!(VERSION_1_LEN, offset_of!(Vtable, prefetch_chunks));
    }
}
