//! The eight C functions. Each checks its inputs, calls the backend, and returns output and code.

use std::ffi::{c_char, c_int};
use std::ptr;

use super::Plugin;
use super::guard::{guard, guard_value};
use super::input::{self, Opened};
use super::output::Output;
use crate::abi::{ALREADY_THERE, Handle, MISSING, STORED};
use crate::backend::Put;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// # Safety
/// `uri` is NULL or a C string.
pub(super) unsafe extern "C" fn open<P: Plugin>(uri: *const c_char) -> Handle {
    let opened = guard_value("", "open", || {
        // SAFETY: NULL or a C string, as the caller of `open` promises.
        let uri: StoreUri = unsafe { input::uri(uri) }?;
        let scheme = uri.scheme().to_owned();
        // The scheme is known now, so use a second guard whose messages contain it.
        Ok(guard_value(&scheme, "open", || {
            let backend = P::open(&uri)?;
            Ok(Box::new(Opened { scheme: uri.scheme().into(), backend }))
        })
        .ok())
    });
    match opened {
        Ok(Some(opened)) => Box::into_raw(opened).cast(),
        Ok(None) | Err(_) => ptr::null_mut(),
    }
}

/// # Safety
/// `handle` is NULL or comes from `open` of this table, was not closed, and no other call uses it.
pub(super) unsafe extern "C" fn close<P: Plugin>(handle: Handle) {
    if handle.is_null() {
        return;
    }
    // SAFETY: `open` made it from a Box of this type, and the caller gives it back once.
    let opened = unsafe { Box::from_raw(handle.cast::<Opened<P>>()) };
    let Opened { scheme, backend } = *opened;
    // A failure has been reported already.
    let _ = guard_value(&scheme, "close", || {
        drop(backend);
        Ok(())
    });
}

/// # Safety
/// As in `kv_store_v1.h`: `handle` is NULL or open, and each pointer is NULL or valid for its length.
pub(super) unsafe extern "C" fn put_chunk<P: Plugin>(
    handle: Handle,
    hash: *const u8,
    hash_len: usize,
    data: *const u8,
    data_len: usize,
) -> c_int {
    let body = |backend: &P| {
        // SAFETY: the caller promises that both are NULL or valid for their lengths.
        let (hash, data) = unsafe { (input::hash(hash, hash_len)?, input::data(data, data_len)?) };
        Ok(match backend.put_chunk(&hash, data)? {
            Put::Stored => STORED,
            Put::AlreadyThere => ALREADY_THERE,
        })
    };
    // SAFETY: NULL or open, as the caller promises.
    unsafe { guard("put_chunk", handle, body) }
}

/// # Safety
/// The same as for [`put_chunk`].
pub(super) unsafe extern "C" fn get_chunk<P: Plugin>(
    handle: Handle,
    hash: *const u8,
    hash_len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int {
    // SAFETY: the caller promises that each is NULL or valid for writes.
    let output = unsafe { Output::new(out, out_len) };
    let body = |backend: &P| {
        let output = output?;
        // SAFETY: as the caller promises.
        let hash = unsafe { input::hash(hash, hash_len) }?;
        match backend.get_chunk(&hash)? {
            Some(value) => output.give(&value),
            None => Ok(MISSING),
        }
    };
    // SAFETY: NULL or open, as the caller promises.
    unsafe { guard("get_chunk", handle, body) }
}

/// # Safety
/// The same as for [`put_chunk`], and `name` is NULL or a C string.
pub(super) unsafe extern "C" fn put_manifest<P: Plugin>(
    handle: Handle,
    name: *const c_char,
    data: *const u8,
    data_len: usize,
) -> c_int {
    let body = |backend: &P| {
        // SAFETY: as the caller promises, for both.
        let (name, data) = unsafe { (input::name(name)?, input::data(data, data_len)?) };
        backend.put_manifest(&name, data)?;
        Ok(0)
    };
    // SAFETY: NULL or open, as the caller promises.
    unsafe { guard("put_manifest", handle, body) }
}

/// # Safety
/// The same as for [`put_manifest`].
pub(super) unsafe extern "C" fn get_manifest<P: Plugin>(
    handle: Handle,
    name: *const c_char,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int {
    // SAFETY: the caller promises that each is NULL or valid for writes.
    let output = unsafe { Output::new(out, out_len) };
    let body = |backend: &P| {
        let output = output?;
        // SAFETY: as the caller promises.
        let name: ManifestName = unsafe { input::name(name) }?;
        match backend.get_manifest(&name)? {
            Some(value) => output.give(&value),
            None => Ok(MISSING),
        }
    };
    // SAFETY: NULL or open, as the caller promises.
    unsafe { guard("get_manifest", handle, body) }
}

/// # Safety
/// The same as for [`put_manifest`].
pub(super) unsafe extern "C" fn delete_manifest<P: Plugin>(handle: Handle, name: *const c_char) -> c_int {
    let body = |backend: &P| {
        // SAFETY: as the caller promises.
        let name = unsafe { input::name(name) }?;
        backend.delete_manifest(&name)?;
        Ok(0)
    };
    // SAFETY: NULL or open, as the caller promises.
    unsafe { guard("delete_manifest", handle, body) }
}

/// # Safety
/// The same as for [`put_chunk`], and `hashes` is NULL or valid for `hash_len * n_hashes` bytes.
pub(super) unsafe extern "C" fn prefetch_chunks<P: Plugin>(
    handle: Handle,
    hashes: *const u8,
    hash_len: usize,
    n_hashes: usize,
) -> c_int {
    let body = |backend: &P| {
        // SAFETY: as the caller promises.
        let hashes = unsafe { input::hashes(hashes, hash_len, n_hashes) }?;
        backend.prefetch_chunks(&hashes)?;
        Ok(0)
    };
    // SAFETY: NULL or open, as the caller promises.
    unsafe { guard("prefetch_chunks", handle, body) }
}
