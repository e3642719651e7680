//! The C interface `kv_store_v1`: `include/kv_store_v1.h` in Rust.
//!
//! A backend is a shared object `libkv_store_<scheme>.so` that exports one symbol,
//! [`GET_VTABLE`], of type [`GetVtable`]. Inputs are borrowed for the call; outputs come from C `malloc` and
//! belong to the caller; a handle may be used from several threads at once; nothing unwinds across.
//!
//! In a version 1 table, `prefetch_chunks` may be NULL or absent: the table then has 64 bytes, and no memory need be
//! mapped behind them. Code that reads a foreign table must therefore read its fields through raw pointers and never
//! form a reference to the whole table. [`crate::loader`] does so.

use std::ffi::{CStr, c_char, c_int, c_void};

/// The name of the exported symbol.
pub const GET_VTABLE: &CStr = c"kv_store_get_vtable";

/// The version of a table without `prefetch_chunks`.
pub const VERSION_1: u32 = 1;

/// The version of a table with `prefetch_chunks`.
pub const VERSION_2: u32 = 2;

/// `put_chunk` stored the chunk.
pub const STORED: c_int = 0;

/// `put_chunk` found that the chunk exists already.
pub const ALREADY_THERE: c_int = 1;

/// `get_*` found no such value (`-ENOENT`). The contract only requires negative codes for a missing value and for
/// errors. The backends of this crate distinguish them with this code and the two below; consumers may look at the sign
/// alone.
pub const MISSING: c_int = -2;

/// The store failed (`-EIO`). One line on stderr says why.
pub const ERROR: c_int = -5;

/// An argument is invalid (`-EINVAL`): a NULL pointer, a length out of range, or a name that is not UTF-8.
pub const INVALID: c_int = -22;

/// The length in bytes of a version 1 table, which ends after `delete_manifest`.
pub const VERSION_1_LEN: usize = 64;

/// An open store, as its backend represents it.
pub type Handle = *mut c_void;

/// The type of the exported symbol. It returns the table, which lives as long as the library is loaded.
pub type GetVtable = unsafe extern "C" fn() -> *const Vtable;

/// Opens the store of a URI (`const char *uri`). Returns NULL on failure, with the reason on stderr.
pub type Open = unsafe extern "C" fn(uri: *const c_char) -> Handle;

/// Closes a handle.
pub type Close = unsafe extern "C" fn(handle: Handle);

/// Returns 0 if the chunk was stored, 1 if it existed already, and a negative value on errors.
pub type PutChunk =
    unsafe extern "C" fn(handle: Handle, hash: *const u8, hash_len: usize, data: *const u8, data_len: usize) -> c_int;

/// Returns 0, or a negative value for an error or a missing chunk.
pub type GetChunk = unsafe extern "C" fn(
    handle: Handle,
    hash: *const u8,
    hash_len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int;

/// Returns 0, or a negative value on errors.
pub type PutManifest =
    unsafe extern "C" fn(handle: Handle, name: *const c_char, data: *const u8, data_len: usize) -> c_int;

/// Returns 0, or a negative value for an error or a missing manifest.
pub type GetManifest =
    unsafe extern "C" fn(handle: Handle, name: *const c_char, out: *mut *mut u8, out_len: *mut usize) -> c_int;

/// Returns 0, even if there was no such manifest, or a negative value on errors.
pub type DeleteManifest = unsafe extern "C" fn(handle: Handle, name: *const c_char) -> c_int;

/// Takes `n_hashes` hashes of `hash_len` bytes laid end to end. Returns 0, or a negative value on errors, which are
/// never fatal.
pub type PrefetchChunks =
    unsafe extern "C" fn(handle: Handle, hashes: *const u8, hash_len: usize, n_hashes: usize) -> c_int;

/// The C struct `kv_store_vtable`. Every function is optional in the type because a foreign table may hold NULL.
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
