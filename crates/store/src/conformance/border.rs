//! Items about the library itself: its name, symbols and table, and invalid arguments from C.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::context::Context;
use super::item::{Item, at_border, must, ours};
use super::outcome::{Outcome, Stop, broken, ensure};
use super::symbols;
use crate::abi::{Handle, MISSING, VERSION_2};
use crate::loader::Loaded;

/// The time limit of a call that has nothing to do.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The item that has to pass before the others are meaningful.
pub(super) const LOADS: &str = "library-loads";

pub(super) const ITEMS: &[Item] = &[
    at_border(must(
        LOADS,
        "the library loads, kv_store_get_vtable returns a table of version 1, 2 or later without NULL functions, and \
         open and close work",
        loads,
    )),
    at_border(must(
        "library-name",
        "the library of scheme foo is named libkv_store_foo.so (.dylib on macOS)",
        library_name,
    )),
    at_border(ours(
        "exported-symbols",
        "kv_store_get_vtable is the only symbol that must be exported; others may clash with those of other libraries",
        exported,
    )),
    at_border(must(
        "table-version",
        "version is the highest level implemented, 2 only with prefetch_chunks; every call returns the same table",
        version,
    )),
    at_border(ours("close-null", "close(NULL) does nothing", close_null)),
    at_border(ours("hash-length-bounds", "a hash of 0 or of more than 64 bytes is an error", hash_bounds)),
    at_border(ours(
        "null-arguments",
        "a NULL pointer is an error where a value is needed; data may be NULL if its length is 0",
        null_arguments,
    )),
    at_border(ours("name-bounds", "a name that is not UTF-8 or longer than 1,024 bytes is an error", name_bounds)),
    at_border(ours(
        "prefetch-bounds",
        "prefetch_chunks refuses hash_len * n_hashes that no memory holds, and accepts zero hashes",
        prefetch_bounds,
    )),
    at_border(ours("open-nonsense", "open returns NULL for a text that is not the URI of a store", open_nonsense)),
    at_border(ours(
        "missing-code",
        "missing values have their own code, -2 (-ENOENT), which consumers can tell from failures",
        missing_code,
    )),
];

pub(super) fn opened(context: &Context<'_>) -> Result<Loaded, Stop> {
    let border = context.border()?;
    border.library.open(&border.uri).map_err(|error| Stop::Broken(error.to_string()))
}

fn loads(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let library = store.library();
    let prefetches = if library.prefetches() { "with" } else { "without" };
    Ok(format!("{}, version {}, {prefetches} prefetch_chunks", library.path().display(), library.version()))
}

fn library_name(context: &Context<'_>) -> Outcome {
    let border = context.border()?;
    let expected =
        format!("{}kv_store_{}{}", std::env::consts::DLL_PREFIX, border.uri.scheme(), std::env::consts::DLL_SUFFIX);
    let name = border.path.file_name().unwrap_or_default().to_string_lossy();
    ensure!(name == expected, "it is called {name}; for {} that is {expected}", border.uri.scheme());
    Ok(expected)
}

fn exported(context: &Context<'_>) -> Outcome {
    let names = symbols::exports(context.border()?.library.path()).map_err(Stop::Skip)?;
    let (own, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name == "kv_store_get_vtable");
    ensure!(!own.is_empty(), "kv_store_get_vtable is not among its exports: a library that it needs has it");
    if others.is_empty() {
        return Ok("kv_store_get_vtable, and nothing else".into());
    }
    let some = others.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = match others.len().saturating_sub(5) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    broken!("kv_store_get_vtable, and {} others: {some}{more}", others.len())
}

fn version(context: &Context<'_>) -> Outcome {
    let library = &context.border()?.library;
    let get_vtable = library.get_vtable();
    // SAFETY: the library stays loaded, and the function takes no arguments.
    let (first, second) = unsafe { (get_vtable(), get_vtable()) };
    ensure!(first == second, "kv_store_get_vtable returned {first:p}, then {second:p}");
    let version = library.version();
    ensure!(version < VERSION_2 || library.prefetches(), "version is 2, and prefetch_chunks is NULL");
    Ok(format!("version {version}, the same table twice"))
}

fn close_null(context: &Context<'_>) -> Outcome {
    let table = context.border()?.library.table();
    // SAFETY: this call is the test; a library that fails it may crash the process.
    unsafe { (table.close)(ptr::null_mut()) };
    Ok("it did nothing that could be seen".into())
}

fn refused(codes: &[(&str, i32)]) -> Outcome {
    let taken: Vec<String> =
        codes.iter().filter(|(_, code)| *code >= 0).map(|(call, code)| format!("{call} returned {code}")).collect();
    ensure!(taken.is_empty(), "{}", taken.join("; "));
    Ok(format!("{} bad calls returned negative codes", codes.len()))
}

fn hash_bounds(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let table = store.library().table();
    let (long, data) = (context.fresh(200), context.fresh(10));
    let mut codes = Vec::new();
    for (len, put_call, get_call) in [
        (0, "put_chunk with a hash of 0 bytes", "get_chunk with a hash of 0 bytes"),
        (65, "put_chunk with a hash of 65 bytes", "get_chunk with a hash of 65 bytes"),
        (200, "put_chunk with a hash of 200 bytes", "get_chunk with a hash of 200 bytes"),
    ] {
        let (mut out, mut out_len) = (ptr::null_mut(), 0);
        // SAFETY: the handle is open, and every pointer is valid for the length that is passed with it.
        unsafe {
            let put = (table.put_chunk)(store.handle(), long.as_ptr(), len, data.as_ptr(), data.len());
            codes.push((put_call, put));
            let get = (table.get_chunk)(store.handle(), long.as_ptr(), len, &raw mut out, &raw mut out_len);
            codes.push((get_call, get));
        }
    }
    refused(&codes)
}

fn null_arguments(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let table = store.library().table();
    let handle = store.handle();
    let name = c_name(context, "/null")?;
    let (hash, data) = (context.fresh(32), context.fresh(10));
    let (key, name) = (hash.as_ptr(), name.as_ptr());
    let (none, no_handle): (*const u8, Handle) = (ptr::null(), ptr::null_mut());
    let (mut out, mut len) = (ptr::null_mut(), 0);
    let (to, to_len) = (&raw mut out, &raw mut len);
    // SAFETY: passing NULL is the test; the other pointers are valid for the lengths that are passed with them.
    let codes = unsafe {
        [
            ("put_chunk(NULL handle)", (table.put_chunk)(no_handle, key, 32, data.as_ptr(), 10)),
            ("get_chunk(NULL handle)", (table.get_chunk)(no_handle, key, 32, to, to_len)),
            ("put_manifest(NULL handle)", (table.put_manifest)(no_handle, name, data.as_ptr(), 10)),
            ("get_manifest(NULL handle)", (table.get_manifest)(no_handle, name, to, to_len)),
            ("delete_manifest(NULL handle)", (table.delete_manifest)(no_handle, name)),
            ("put_chunk(NULL hash)", (table.put_chunk)(handle, none, 32, data.as_ptr(), 10)),
            ("put_chunk(NULL data)", (table.put_chunk)(handle, key, 32, none, 10)),
            ("get_chunk(NULL hash)", (table.get_chunk)(handle, none, 32, to, to_len)),
            ("get_chunk(NULL out)", (table.get_chunk)(handle, key, 32, ptr::null_mut(), to_len)),
            ("get_chunk(NULL out_len)", (table.get_chunk)(handle, key, 32, to, ptr::null_mut())),
            ("put_manifest(NULL name)", (table.put_manifest)(handle, ptr::null(), data.as_ptr(), 10)),
            ("put_manifest(NULL data)", (table.put_manifest)(handle, name, none, 10)),
            ("get_manifest(NULL name)", (table.get_manifest)(handle, ptr::null(), to, to_len)),
            ("delete_manifest(NULL name)", (table.delete_manifest)(handle, ptr::null())),
            ("open(NULL)", if (table.open)(ptr::null()).is_null() { -1 } else { 0 }),
        ]
    };
    let seen = refused(&codes)?;
    let empty = context.fresh(32);
    // SAFETY: as above; data of no bytes may be NULL.
    let (chunk, manifest) = unsafe {
        ((table.put_chunk)(handle, empty.as_ptr(), 32, none, 0), (table.put_manifest)(handle, name, none, 0))
    };
    ensure!(chunk == 0, "put_chunk(NULL data, length 0) returned {chunk}");
    ensure!(manifest == 0, "put_manifest(NULL data, length 0) returned {manifest}");
    Ok(seen + ", and NULL data of length 0 was taken")
}

fn name_bounds(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let table = store.library().table();
    let long = CString::new("x".repeat(1025)).unwrap_or_default();
    let mut codes = Vec::new();
    for (name, calls) in [
        (c"\xff\xfe\x80".as_ptr(), ["put_manifest(not UTF-8)", "get_manifest(not UTF-8)"]),
        (long.as_ptr(), ["put_manifest(1,025 bytes)", "get_manifest(1,025 bytes)"]),
    ] {
        let (mut out, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the handle is open, the name is a C string, the outputs may be written.
        unsafe {
            let put = (table.put_manifest)(store.handle(), name, b"x".as_ptr(), 1);
            let get = (table.get_manifest)(store.handle(), name, &raw mut out, &raw mut len);
            codes.extend([(calls[0], put), (calls[1], get)]);
            // Clean up if it was accepted.
            (table.delete_manifest)(store.handle(), name);
        }
    }
    refused(&codes)
}

fn prefetch_bounds(context: &Context<'_>) -> Outcome {
    let store = Arc::new(opened(context)?);
    let Some(prefetch) = store.library().table().prefetch_chunks else {
        return Err(Stop::Skip("it has no prefetch_chunks".into()));
    };
    let hashes = context.fresh(64);
    // Use a separate thread, because a library that loops 2^58 times would not return.
    let call = |hashes: Option<&[u8]>, len: usize, n: usize| {
        let (store, hashes) = (Arc::clone(&store), hashes.map(<[u8]>::to_vec));
        let (tell, result) = channel();
        thread::spawn(move || {
            let at = hashes.as_ref().map_or(ptr::null(), |hashes| hashes.as_ptr());
            // SAFETY: refusing lengths beyond the 64 bytes is the test. The products overflow in every representation,
            // so a library that does not check most likely does nothing.
            let code = unsafe { prefetch(store.handle(), at, len, n) };
            let _ = tell.send(code);
        });
        result.recv_timeout(TIMEOUT).map_err(|_| {
            Stop::Broken(format!("prefetch_chunks of {n} hashes of {len} bytes did not return within {TIMEOUT:?}"))
        })
    };
    let two = Some(&hashes[..]);
    let none = call(two, 32, 0)?;
    ensure!(none == 0, "prefetch_chunks of no hashes returned {none}");
    refused(&[
        ("prefetch_chunks(hashes of 0 bytes)", call(two, 0, 2)?),
        ("prefetch_chunks(64 * 2^58 bytes)", call(two, 64, 1 << 58)?),
        ("prefetch_chunks(NULL hashes)", call(None, 32, 1)?),
    ])
}

fn open_nonsense(context: &Context<'_>) -> Outcome {
    let table = context.border()?.library.table();
    let mut opened = Vec::new();
    for (uri, what) in [
        (c"", "an empty URI"),
        (c"nonsense", "a URI without a scheme"),
        (c"\xff\xfe://\x80", "a URI that is not UTF-8"),
    ] {
        // SAFETY: the argument is a C string, and the returned handle is closed once.
        unsafe {
            let handle = (table.open)(uri.as_ptr());
            if !handle.is_null() {
                opened.push(what);
                (table.close)(handle);
            }
        }
    }
    ensure!(opened.is_empty(), "open took {}", opened.join(", and "));
    Ok("open returned NULL for 3 texts that are not URIs".into())
}

fn missing_code(context: &Context<'_>) -> Outcome {
    let store = opened(context)?;
    let table = store.library().table();
    let (hash, name) = (context.fresh(32), c_name(context, "/missing-code")?);
    let (mut out, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the handle is open, and every pointer is valid for the length that is passed with it.
    let (chunk, manifest) = unsafe {
        (
            (table.get_chunk)(store.handle(), hash.as_ptr(), 32, &raw mut out, &raw mut len),
            (table.get_manifest)(store.handle(), name.as_ptr(), &raw mut out, &raw mut len),
        )
    };
    ensure!(chunk == MISSING && manifest == MISSING, "a missing chunk is {chunk}, a missing manifest {manifest}");
    Ok(format!("a missing chunk and a missing manifest are {MISSING}"))
}

fn c_name(context: &Context<'_>, rest: &str) -> Result<CString, Stop> {
    CString::new(context.name(rest)?.as_str()).map_err(|error| Stop::Broken(error.to_string()))
}
