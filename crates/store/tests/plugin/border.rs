//! The C functions of the export macro: bad arguments, panics, ownership, codes, lines on stderr.

mod random;

use std::ffi::{CStr, c_char, c_int};
use std::process::Command;
use std::ptr;

use bytes::Bytes;
use transload_store::abi::{ALREADY_THERE, ERROR, Handle, INVALID, MISSING, STORED, Vtable};
use transload_store::backend::MemoryStore;
use transload_store::export::{Plugin, vtable};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError, StoreUri};
use transload_test_stores::forward;

/// A `MemoryStore` whose prefetch puts the requested chunks, to show what was passed to it.
#[derive(Debug)]
struct Prefetching(MemoryStore);

impl Backend for Prefetching {
    fn prefetch_chunks(&self, hashes: &[ChunkHash]) -> Result<(), StoreError> {
        for hash in hashes {
            self.0.put_chunk(hash, b"prefetched")?;
        }
        Ok(())
    }

    forward!(0: put_chunk, get_chunk, put_manifest, get_manifest, delete_manifest);
}

impl Plugin for Prefetching {
    const PREFETCH: bool = true;

    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        Ok(Self(<MemoryStore as Plugin>::open(uri)?))
    }
}

/// Panics in every call, in ways that are hard to catch.
#[derive(Debug)]
struct Panicking;

/// A panic payload whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload's drop");
    }
}

#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the error's text");
    }
}

impl std::error::Error for Unspeakable {}

impl Backend for Panicking {
    fn put_chunk(&self, _: &ChunkHash, _: &[u8]) -> Result<Put, StoreError> {
        panic!("in put_chunk, over\ntwo lines");
    }

    fn get_chunk(&self, _: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        std::panic::panic_any(Bomb);
    }

    fn put_manifest(&self, _: &ManifestName, _: &[u8]) -> Result<(), StoreError> {
        std::panic::panic_any(7_u32);
    }

    fn get_manifest(&self, name: &ManifestName) -> Result<Option<Bytes>, StoreError> {
        panic!("in get_manifest of {name}");
    }

    fn delete_manifest(&self, _: &ManifestName) -> Result<(), StoreError> {
        Err(StoreError::remote("deleting", Unspeakable))
    }

    fn prefetch_chunks(&self, _: &[ChunkHash]) -> Result<(), StoreError> {
        panic!("in prefetch_chunks");
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

impl Plugin for Panicking {
    const PREFETCH: bool = true;

    fn open(uri: &StoreUri) -> Result<Self, StoreError> {
        assert!(uri.rest() != "now", "in open");
        Ok(Self)
    }
}

/// The functions of a table, with arguments as C code might pass them. Calls are as unsafe as the ABI makes them. The
/// tests pass NULL, or pointers that are valid for their length.
struct C(Vtable);

#[expect(clippy::undocumented_unsafe_blocks, reason = "see the type: one reason for all")]
impl C {
    fn open(&self, uri: &CStr) -> Handle {
        unsafe { self.0.open.unwrap()(uri.as_ptr()) }
    }

    fn close(&self, handle: Handle) {
        unsafe { self.0.close.unwrap()(handle) }
    }

    fn put_chunk(&self, handle: Handle, hash: (*const u8, usize), data: (*const u8, usize)) -> c_int {
        unsafe { self.0.put_chunk.unwrap()(handle, hash.0, hash.1, data.0, data.1) }
    }

    fn put_manifest(&self, handle: Handle, name: *const c_char, data: (*const u8, usize)) -> c_int {
        unsafe { self.0.put_manifest.unwrap()(handle, name, data.0, data.1) }
    }

    fn delete_manifest(&self, handle: Handle, name: *const c_char) -> c_int {
        unsafe { self.0.delete_manifest.unwrap()(handle, name) }
    }

    fn prefetch(&self, handle: Handle, hashes: *const u8, len: usize, n: usize) -> c_int {
        unsafe { self.0.prefetch_chunks.unwrap()(handle, hashes, len, n) }
    }

    /// Returns the code, and the value if the code is 0. `out` and `out_len` start with invalid values.
    fn get(&self, get: impl FnOnce(*mut *mut u8, *mut usize) -> c_int) -> (c_int, Option<Vec<u8>>) {
        let (mut out, mut len) = (ptr::dangling_mut::<u8>(), usize::MAX);
        let code = get(&raw mut out, &raw mut len);
        if code != 0 {
            assert!(out.is_null() && len == 0, "an error leaves NULL and 0");
            return (code, None);
        }
        assert!(!out.is_null(), "a value has a buffer, whatever its length");
        unsafe {
            let value = std::slice::from_raw_parts(out, len).to_vec();
            // It is the caller's to write to, and free's to end.
            out.write_bytes(0xee, len.max(1));
            libc::free(out.cast());
            (code, Some(value))
        }
    }

    fn get_chunk(&self, handle: Handle, hash: (*const u8, usize)) -> (c_int, Option<Vec<u8>>) {
        self.get(|out, len| unsafe { self.0.get_chunk.unwrap()(handle, hash.0, hash.1, out, len) })
    }

    fn get_manifest(&self, handle: Handle, name: *const c_char) -> (c_int, Option<Vec<u8>>) {
        self.get(|out, len| unsafe { self.0.get_manifest.unwrap()(handle, name, out, len) })
    }
}

fn bytes(of: &[u8]) -> (*const u8, usize) {
    (of.as_ptr(), of.len())
}

const NOTHING: (*const u8, usize) = (ptr::null(), 0);

#[test]
fn the_table_is_of_the_version_that_its_functions_make() {
    let table = vtable::<MemoryStore>();
    assert_eq!((table.version, table.prefetch_chunks.is_some()), (1, false));
    let table = vtable::<Prefetching>();
    assert_eq!((table.version, table.prefetch_chunks.is_some()), (2, true));
}

#[test]
fn values_go_through_and_come_back_in_buffers_of_malloc() {
    let c = C(vtable::<Prefetching>());
    let store = c.open(c"memory://border-values");
    let (key, other) = (bytes(b"12345678"), bytes(b"1234567890123456"));
    assert_eq!(c.put_chunk(store, key, bytes(b"a\0b")), STORED);
    assert_eq!(c.put_chunk(store, key, bytes(b"other")), ALREADY_THERE);
    assert_eq!(c.put_chunk(store, other, NOTHING), STORED);
    assert_eq!(c.get_chunk(store, key), (0, Some(b"a\0b".to_vec())));
    assert_eq!(c.get_chunk(store, other), (0, Some(Vec::new())));
    assert_eq!(c.get_chunk(store, bytes(b"nothing")), (MISSING, None));
    assert_eq!(c.put_manifest(store, c"".as_ptr(), NOTHING), 0);
    assert_eq!(c.put_manifest(store, c"../x".as_ptr(), bytes(b"text")), 0);
    assert_eq!(c.get_manifest(store, c"".as_ptr()), (0, Some(Vec::new())));
    assert_eq!(c.get_manifest(store, c"../x".as_ptr()), (0, Some(b"text".to_vec())));
    assert_eq!(c.delete_manifest(store, c"../x".as_ptr()), 0);
    assert_eq!(c.delete_manifest(store, c"../x".as_ptr()), 0);
    assert_eq!(c.get_manifest(store, c"../x".as_ptr()), (MISSING, None));
    assert_eq!(c.prefetch(store, b"one.two.".as_ptr(), 4, 2), 0);
    assert_eq!(c.get_chunk(store, bytes(b"two.")), (0, Some(b"prefetched".to_vec())));
    assert_eq!(c.prefetch(store, ptr::null(), 0, 0), 0);
    c.close(store);
    c.close(ptr::null_mut());
}

#[test]
fn a_bad_argument_is_an_error_and_never_reaches_the_backend() {
    let c = C(vtable::<Prefetching>());
    assert!(c.open(c"no uri").is_null());
    assert!(c.open(c"redis://:secret@host").is_null());
    assert!(c.open(c"a://\xff").is_null());
    let store = c.open(c"memory://border-arguments");
    let key = bytes(b"12345678");
    let long = [7; 65];
    let none: *const u8 = ptr::null();
    for hash in [(none, 8), (none, 0), (key.0, 0), bytes(&long), (key.0, usize::MAX)] {
        assert_eq!(c.put_chunk(store, hash, bytes(b"x")), INVALID);
        assert_eq!(c.get_chunk(store, hash), (INVALID, None));
    }
    for data in [(none, 1), (none, usize::MAX), (key.0, usize::MAX), (key.0, 1 << 63)] {
        assert_eq!(c.put_chunk(store, key, data), INVALID);
        assert_eq!(c.put_manifest(store, c"m".as_ptr(), data), INVALID);
    }
    let long = std::ffi::CString::new("x".repeat(1025)).unwrap();
    for name in [ptr::null(), c"\xff\xfe".as_ptr(), long.as_ptr()] {
        assert_eq!(c.put_manifest(store, name, bytes(b"x")), INVALID);
        assert_eq!(c.get_manifest(store, name), (INVALID, None));
        assert_eq!(c.delete_manifest(store, name), INVALID);
    }
    for (hashes, len, n) in [
        (none, 8, 1),
        (key.0, 0, 1),
        (key.0, 65, 1),
        (key.0, 8, usize::MAX),
        (key.0, 64, usize::MAX / 64),
        // The product alone would be 0.
        (key.0, 64, 1 << 58),
        (key.0, 8, 1 << 61),
    ] {
        assert_eq!(c.prefetch(store, hashes, len, n), INVALID, "{len} x {n}");
    }
    // SAFETY: NULL is what is tested.
    unsafe {
        let (get_chunk, get_manifest) = (c.0.get_chunk.unwrap(), c.0.get_manifest.unwrap());
        let (mut out, mut len) = (ptr::null_mut(), 0);
        assert_eq!(get_chunk(store, key.0, key.1, ptr::null_mut(), &raw mut len), INVALID);
        assert_eq!(get_chunk(store, key.0, key.1, &raw mut out, ptr::null_mut()), INVALID);
        assert_eq!(get_manifest(store, c"m".as_ptr(), ptr::null_mut(), ptr::null_mut()), INVALID);
        assert!(c.0.open.unwrap()(ptr::null()).is_null());
    }
    let nobody = ptr::null_mut();
    assert_eq!(c.put_chunk(nobody, key, bytes(b"x")), INVALID);
    assert_eq!(c.get_chunk(nobody, key), (INVALID, None));
    assert_eq!(c.put_manifest(nobody, c"m".as_ptr(), bytes(b"x")), INVALID);
    assert_eq!(c.get_manifest(nobody, c"m".as_ptr()), (INVALID, None));
    assert_eq!(c.delete_manifest(nobody, c"m".as_ptr()), INVALID);
    assert_eq!(c.prefetch(nobody, key.0, 8, 1), INVALID);
    assert_eq!(c.get_chunk(store, key), (MISSING, None));
    assert_eq!(c.get_manifest(store, c"m".as_ptr()), (MISSING, None));
    c.close(store);
}

#[test]
fn a_panic_is_a_code_in_every_function() {
    let c = C(vtable::<Panicking>());
    assert!(c.open(c"panic://now").is_null());
    let store = c.open(c"panic://later");
    assert!(!store.is_null());
    let key = bytes(b"12345678");
    assert_eq!(c.put_chunk(store, key, bytes(b"x")), ERROR);
    assert_eq!(c.get_chunk(store, key), (ERROR, None));
    assert_eq!(c.put_manifest(store, c"m".as_ptr(), bytes(b"x")), ERROR);
    assert_eq!(c.get_manifest(store, c"m".as_ptr()), (ERROR, None));
    assert_eq!(c.delete_manifest(store, c"m".as_ptr()), ERROR);
    assert_eq!(c.prefetch(store, key.0, 8, 1), ERROR);
    c.close(store);
}

/// This prints thousands of lines to stderr, so it runs in a separate process.
#[test]
fn no_combination_of_arguments_crashes() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "border::random::other_process"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", output.status);
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn errors_are_one_line_each_and_a_miss_is_none() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "border::other_process", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let ours: Vec<&str> = text.lines().filter(|line| line.starts_with("libkv_store")).collect();
    let begin = [
        "libkv_store: open: a store's URI must not contain a password",
        "libkv_store_panic: open: the backend panicked, which is a fault in it: in open",
        "libkv_store_panic: put_chunk: the backend panicked, which is a fault in it: in put_chunk, over\\ntwo lines",
        "libkv_store_panic: get_manifest: the backend panicked, which is a fault in it: in get_manifest of a\\nb",
        "libkv_store_panic: get_chunk: a chunk's hash has 1 to 64 bytes, not 65",
        "libkv_store: get_chunk: the handle is NULL",
        "libkv_store_panic: close: the backend panicked, which is a fault in it: in drop",
    ];
    assert_eq!(ours.len(), begin.len(), "{text}");
    for (line, begin) in ours.iter().zip(begin) {
        assert!(line.starts_with(begin), "{line}\n{begin}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
#[ignore = "the half of a test whose stderr is read"]
fn other_process() {
    let c = C(vtable::<Prefetching>());
    c.open(c"redis://:hunter2@host");
    let store = c.open(c"memory://border-lines");
    assert_eq!(c.get_chunk(store, bytes(b"nothing")).0, MISSING);
    assert_eq!(c.get_manifest(store, c"nothing".as_ptr()).0, MISSING);
    c.close(store);
    let c = C(vtable::<Panicking>());
    c.open(c"panic://now");
    let store = c.open(c"panic://later");
    c.put_chunk(store, bytes(b"x"), NOTHING);
    c.get_manifest(store, c"a\nb".as_ptr());
    c.get_chunk(store, bytes(&[0; 65]));
    c.get_chunk(ptr::null_mut(), bytes(b"x"));
    c.close(store);
}
