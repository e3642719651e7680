//! Checks of the arguments that C code passes.

use std::ffi::{CStr, c_char};
use std::slice;

use super::refusal::Refusal;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

pub(super) struct Opened<P> {
    /// The scheme, for messages on stderr.
    pub(super) scheme: Box<str>,
    pub(super) backend: P,
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Argument(what.into()))
}

/// # Safety
/// `uri` is NULL or a C string.
pub(super) unsafe fn uri(uri: *const c_char) -> Result<StoreUri, Refusal> {
    if uri.is_null() {
        return wrong("the URI is NULL");
    }
    // SAFETY: the caller promises that it is a C string.
    match unsafe { CStr::from_ptr(uri) }.to_str() {
        Ok(uri) => Ok(uri.parse().map_err(|error| Refusal::Store(crate::StoreError::Uri(error)))?),
        Err(_) => wrong("the URI is not UTF-8"),
    }
}

/// # Safety
/// `name` is NULL or a C string.
pub(super) unsafe fn name(name: *const c_char) -> Result<ManifestName, Refusal> {
    if name.is_null() {
        return wrong("the name of the manifest is NULL");
    }
    // SAFETY: the caller promises that it is a C string. No more than the longest name is read.
    let len = unsafe { libc::strnlen(name, ManifestName::MAX + 1) };
    // SAFETY: strnlen has read these bytes.
    let bytes = unsafe { slice::from_raw_parts(name.cast::<u8>(), len) };
    if len > ManifestName::MAX {
        return wrong("the name of the manifest is longer than 1024 bytes");
    }
    match str::from_utf8(bytes) {
        Ok(name) => Ok(ManifestName::new(name)?),
        Err(_) => wrong("the name of the manifest is not UTF-8"),
    }
}

/// # Safety
/// `hash` is NULL or valid for `len` bytes.
pub(super) unsafe fn hash(hash: *const u8, len: usize) -> Result<ChunkHash, Refusal> {
    let len = hash_len(len)?;
    if hash.is_null() {
        return wrong("the hash is NULL");
    }
    // SAFETY: it is not NULL, so the caller promises that it is valid for `len` bytes; `len` is at most 64.
    Ok(ChunkHash::new(unsafe { slice::from_raw_parts(hash, len) })?)
}

/// # Safety
/// `hashes` is NULL or valid for `len * n` bytes.
pub(super) unsafe fn hashes(hashes: *const u8, len: usize, n: usize) -> Result<Vec<ChunkHash>, Refusal> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let len = hash_len(len)?;
    if hashes.is_null() {
        return wrong("the hashes are NULL");
    }
    let Some(bytes) = len.checked_mul(n).filter(|&bytes| addressable(bytes)) else {
        return wrong(format!("{n} hashes of {len} bytes are more than memory can hold"));
    };
    // SAFETY: it is not NULL, so the caller promises that it is valid for that many bytes; the product does not
    // overflow.
    let bytes = unsafe { slice::from_raw_parts(hashes, bytes) };
    Ok(bytes.chunks_exact(len).map(ChunkHash::new).collect::<Result<_, _>>()?)
}

/// # Safety
/// `data` is NULL or valid for `len` bytes, which do not change during the call.
pub(super) unsafe fn data<'call>(data: *const u8, len: usize) -> Result<&'call [u8], Refusal> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return wrong(format!("the data is NULL, and its length is {len}"));
    }
    if !addressable(len) {
        return wrong(format!("{len} bytes of data are more than memory can hold"));
    }
    // SAFETY: it is not NULL, so the caller promises that it is valid for `len` bytes; `len` fits an allocation.
    Ok(unsafe { slice::from_raw_parts(data, len) })
}

fn hash_len(len: usize) -> Result<usize, Refusal> {
    match len {
        1..=ChunkHash::MAX => Ok(len),
        _ => Err(crate::StoreError::HashLength { len }.into()),
    }
}

fn addressable(bytes: usize) -> bool {
    isize::try_from(bytes).is_ok()
}
