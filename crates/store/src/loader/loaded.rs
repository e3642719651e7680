//! A store that is opened through a loaded library.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use super::buffer::take;
use super::error::{CallError, LoadError};
use super::library::Library;
use crate::abi::{ALREADY_THERE, ERROR, Handle, INVALID, MISSING, STORED};
use crate::backend::{Backend, Put};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;
use crate::uri::StoreUri;

/// An open store of a [`Library`]; dropping it closes it.
///
/// The library prints its own errors to stderr. Here they are [`StoreError::Remote`], which names the call and the
/// library, with a [`CallError`] as the source. Returned values are the library's own buffers, not copies.
///
/// A negative code of a get function yields `None`: the contract has only the sign for "missing" and "failed", and
/// consumers can handle a miss. This differs for a library that has returned `-ENOENT`
/// ([`abi::MISSING`](crate::abi::MISSING)) for a missing value. From then on `-EIO` and `-EINVAL`
/// ([`abi::ERROR`](crate::abi::ERROR), [`abi::INVALID`](crate::abi::INVALID)) are errors. To find out, opening reads a
/// random chunk that does not exist, until the library has returned that code once.
pub struct Loaded {
    library: Arc<Library>,
    handle: NonNull<c_void>,
}

// SAFETY: by the ABI, a handle belongs to no thread. The library's author guarantees it.
unsafe impl Send for Loaded {}
// SAFETY: by the ABI, several threads may use a handle at once. The library's author guarantees it.
unsafe impl Sync for Loaded {}

impl Library {
    /// Opens a store. Dropping it closes it.
    ///
    /// # Errors
    /// [`LoadError::Open`] if the library returns NULL. The library prints the reason on stderr.
    pub fn open(self: &Arc<Self>, uri: &StoreUri) -> Result<Loaded, LoadError> {
        let refused = || LoadError::Open { path: self.path().to_owned(), uri: uri.to_string() };
        // A `StoreUri` contains no NUL byte.
        let text = CString::new(uri.as_str()).map_err(|_| refused())?;
        // SAFETY: the function is from the table, and the argument is a C string, as the ABI requires.
        let handle = unsafe { (self.table().open)(text.as_ptr()) };
        let handle = NonNull::new(handle).ok_or_else(refused)?;
        Ok(Loaded::new(Arc::clone(self), handle))
    }
}

impl Loaded {
    fn new(library: Arc<Library>, handle: NonNull<c_void>) -> Self {
        let store = Self { library, handle };
        if !store.library.has_missing_code() {
            // `found` records the code. An error can be ignored, since later calls fail too.
            let _ = store.get_chunk(&unused_hash());
        }
        store
    }

    /// Returns the library.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.as_ptr()
    }

    fn failed(&self, action: impl fmt::Display, error: CallError) -> StoreError {
        StoreError::remote(format!("{action} of {}", self.library.path().display()), error)
    }

    /// A negative code means missing, unless this library has a separate code for that.
    fn found(&self, taken: Result<Bytes, CallError>) -> Result<Option<Bytes>, CallError> {
        match taken {
            Err(CallError::Refused { code: MISSING }) => {
                self.library.set_missing_code();
                Ok(None)
            }
            Err(CallError::Refused { code: ERROR | INVALID }) if self.library.has_missing_code() => taken.map(Some),
            Err(CallError::Refused { .. }) => Ok(None),
            _ => taken.map(Some),
        }
    }

    fn done(&self, action: impl fmt::Display, code: c_int) -> Result<(), StoreError> {
        match code {
            0 => Ok(()),
            ..0 => Err(self.failed(action, CallError::Refused { code })),
            1.. => Err(self.failed(action, CallError::Code { code })),
        }
    }
}

impl Backend for Loaded {
    fn put_chunk(&self, hash: &ChunkHash, data: &[u8]) -> Result<Put, StoreError> {
        let key = hash.as_bytes();
        let put = self.library.table().put_chunk;
        // SAFETY: the handle is open until `drop`, and the library borrows both slices for the call.
        let code = unsafe { put(self.handle(), key.as_ptr(), key.len(), data.as_ptr(), data.len()) };
        match code {
            STORED => Ok(Put::Stored),
            ALREADY_THERE => Ok(Put::AlreadyThere),
            code => {
                self.done(format_args!("put_chunk({hash})"), code)?;
                Ok(Put::Stored)
            }
        }
    }

    fn get_chunk(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        let key = hash.as_bytes();
        let get = self.library.table().get_chunk;
        // SAFETY: the handle is open until `drop`, and the library borrows the hash for the call. After 0 it leaves a
        // malloc'd buffer; the library's author guarantees that.
        let taken = unsafe { take(|out, len| get(self.handle(), key.as_ptr(), key.len(), out, len)) };
        self.found(taken).map_err(|error| self.failed(format_args!("get_chunk({hash})"), error))
    }

    fn put_manifest(&self, name: &ManifestName, data: &[u8]) -> Result<(), StoreError> {
        let text = c_string(name)?;
        let put = self.library.table().put_manifest;
        // SAFETY: the handle is open until `drop`, and the library borrows name and data for the call.
        let code = unsafe { put(self.handle(), text.as_ptr(), data.as_ptr(), data.len()) };
        self.done(format_args!("put_manifest({name})"), code)
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        let text = c_string(name)?;
        let get = self.library.table().get_manifest;
        // SAFETY: as in `get_chunk`.
        let taken = unsafe { take(|out, len| get(self.handle(), text.as_ptr(), out, len)) };
        self.found(taken).map_err(|error| self.failed(format_args!("get_manifest({name})"), error))
    }

    fn delete_manifest(&self, name: &ManifestName) -> Result<(), StoreError> {
        let text = c_string(name)?;
        let delete = self.library.table().delete_manifest;
        // SAFETY: the handle is open until `drop`, and the library borrows the name for the call.
        let code = unsafe { delete(self.handle(), text.as_ptr()) };
        self.done(format_args!("delete_manifest({name})"), code)
    }

    /// Does nothing if the library has no such function. Each hash length needs a separate call.
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        let Some(prefetch) = self.library.table().prefetch_chunks else {
            return Ok(());
        };
        for alike in hashes.chunk_by(|a, b| a.as_bytes().len() == b.as_bytes().len()) {
            let laid: Vec<u8> = alike.iter().flat_map(ChunkHash::as_bytes).copied().collect();
            let len = alike[0].as_bytes().len();
            // SAFETY: the handle is open until `drop`, and the library borrows `laid`, which holds that many hashes of
            // that length.
            let code = unsafe { prefetch(self.handle(), laid.as_ptr(), len, alike.len()) };
            self.done(format_args!("prefetch_chunks({} hashes)", alike.len()), code)?;
        }
        Ok(())
    }

    /// Prefetches the chunks first, if the library can.
    fn get_chunks(&self, hashes: &[ChunkHash]) -> Result<Vec<Option<Bytes>>, StoreError> {
        // A failed prefetch is never fatal. The reads below report errors.
        let _ = self.prefetch_chunks(hashes);
        hashes.iter().map(|hash| self.get_chunk(hash)).collect()
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("library", &self.library.path()).finish_non_exhaustive()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: this library opened the handle, no call uses it any more, and only this closes it.
        unsafe { (self.library.table().close)(self.handle()) }
    }
}

/// Returns a hash that is not in use: random bytes, from the random keys of `RandomState`.
fn unused_hash() -> ChunkHash {
    let mut hasher = blake3::Hasher::new();
    for _ in 0..4 {
        hasher.update(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    hasher.finalize().into()
}

fn c_string(name: &ManifestName) -> Result<CString, StoreError> {
    CString::new(name.as_str()).map_err(|_| StoreError::Name { name: name.to_string(), why: "it contains a NUL byte" })
}
