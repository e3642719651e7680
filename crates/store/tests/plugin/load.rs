//! The loader and every way in which a library can be wrong, with real files.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use transload_store::loader::{CallError, ImageFault, Library, LoadError, Loaded, TableFault};
use transload_store::{Backend, ChunkHash, ManifestName, Put, StoreError, StoreUri};

use crate::build::{self, Toy};

fn uri(text: &str) -> StoreUri {
    text.parse().unwrap()
}

fn name(text: &str) -> ManifestName {
    text.parse().unwrap()
}

fn opened(toy: &Toy) -> Loaded {
    let library = Library::load(toy.path()).unwrap();
    library.open(&uri("toy://here")).unwrap()
}

fn hash(n: u8) -> ChunkHash {
    blake3::hash(&[n]).into()
}

/// Returns the call that failed, and the library's error in it.
fn call_error(error: StoreError) -> (String, CallError) {
    let StoreError::Remote { action, source } = error else {
        panic!("{error}");
    };
    (action, *source.downcast::<CallError>().unwrap())
}

/// `kv_store_v1` has no call that compares and removes in one step, so conditional removal is not supported.
#[test]
fn a_library_removes_nothing_on_a_condition() {
    let store = opened(&Toy::new(&["VERSION=1"]));
    store.put_manifest(&name("m"), b"text").unwrap();
    let read = store.manifest_revision(&name("m"));
    assert!(matches!(read, Err(StoreError::Unsupported { .. })));
}

#[test]
fn a_good_library_is_a_backend() {
    for defines in [&["VERSION=1"][..], &["VERSION=2"], &["EDGE", "VERSION=1"]] {
        let toy = Toy::new(defines);
        let library = Library::load(toy.path()).unwrap();
        assert_eq!(library.path(), toy.path());
        assert_eq!(library.prefetches(), library.version() == 2);
        let store = library.open(&uri("toy://here")).unwrap();
        assert_eq!(store.put_chunk(&hash(1), b"one").unwrap(), Put::Stored);
        assert_eq!(store.put_chunk(&hash(1), b"one").unwrap(), Put::AlreadyThere);
        assert_eq!(store.put_chunk(&hash(2), b"").unwrap(), Put::Stored);
        assert_eq!(store.get_chunk(&hash(1)).unwrap().unwrap(), "one");
        assert_eq!(store.get_chunk(&hash(2)).unwrap().unwrap(), "");
        assert_eq!(store.get_chunk(&hash(3)).unwrap(), None);
        store.put_manifest(&name("m"), b"text").unwrap();
        assert_eq!(store.get_manifest(&name("m")).unwrap().unwrap(), "text");
        store.delete_manifest(&name("m")).unwrap();
        assert_eq!(store.get_manifest(&name("m")).unwrap(), None);
        store.prefetch_chunks(&[hash(1), ChunkHash::new(b"short").unwrap(), hash(3)]).unwrap();
        let both = store.get_chunks(&[hash(1), hash(3)]).unwrap();
        assert_eq!(both, [Some("one".into()), None]);
    }
}

#[test]
fn values_outlive_the_store_and_go_between_threads() {
    let toy = Toy::new(&[]);
    let store = Arc::new(opened(&toy));
    store.put_chunk(&hash(1), &[7; 100_000]).unwrap();
    let reader = Arc::clone(&store);
    let value = std::thread::spawn(move || reader.get_chunk(&hash(1)).unwrap().unwrap());
    let value = value.join().unwrap();
    let part = value.slice(5..10);
    drop((store, value));
    std::thread::spawn(move || assert_eq!(part, [7; 5][..])).join().unwrap();
}

#[test]
fn a_wrong_table_is_named() {
    let faults = [
        ("FAULT_NULL_TABLE", TableFault::Null),
        ("FAULT_NULL_FUNCTION", TableFault::NullFunction { function: "get_chunk" }),
        ("VERSION=0", TableFault::Version { found: 0 }),
    ];
    for (define, expected) in faults {
        let toy = Toy::new(&[define]);
        let error = Library::load(toy.path()).unwrap_err();
        match &error {
            LoadError::Table { path, fault } => {
                assert_eq!((path, fault), (&toy.path(), &expected));
            }
            other => panic!("{define}: {other}"),
        }
        assert!(error.to_string().contains("libkv_store_toy.so"), "{error}");
    }
    let error = Library::load(Toy::new(&["FAULT_NO_SYMBOL"]).path()).unwrap_err();
    assert!(matches!(error, LoadError::NoSymbol { .. }), "{error}");
    // A later version begins as version 2 does.
    let library = Library::load(Toy::new(&["VERSION=3"]).path()).unwrap();
    assert_eq!((library.version(), library.prefetches()), (3, true));
    let store = library.open(&uri("toy://here")).unwrap();
    store.prefetch_chunks(&[hash(1)]).unwrap();
    drop(store);
    // Of version 2 without prefetch is against the contract, and can be used all the same.
    let library = Library::load(Toy::new(&["VERSION=2", "FAULT_NULL_PREFETCH"]).path()).unwrap();
    assert!(!library.prefetches());
    let store = library.open(&uri("toy://here")).unwrap();
    store.prefetch_chunks(&[hash(1)]).unwrap();
}

#[test]
fn a_store_that_does_not_open_is_an_error() {
    let library = Library::load(Toy::new(&["FAULT_NULL_HANDLE"]).path()).unwrap();
    let error = library.open(&uri("toy://nowhere")).unwrap_err();
    assert!(matches!(&error, LoadError::Open { uri, .. } if uri == "toy://nowhere"), "{error}");
    let error = StoreError::from(error);
    assert!(error.to_string().contains("toy://nowhere"), "{error}");
    assert!(error.source().is_some_and(|source| source.is::<LoadError>()));
}

#[test]
fn a_call_that_fails_says_which_and_how() {
    let store = opened(&Toy::new(&["FAULT_EIO"]));
    let code = CallError::Refused { code: -libc::EIO };
    let calls: [(&str, StoreError); 5] = [
        ("put_chunk", store.put_chunk(&hash(1), b"x").unwrap_err()),
        ("get_chunk", store.get_chunk(&hash(1)).unwrap_err()),
        ("put_manifest", store.put_manifest(&name("m"), b"x").unwrap_err()),
        ("get_manifest", store.get_manifest(&name("m")).unwrap_err()),
        ("delete_manifest", store.delete_manifest(&name("m")).unwrap_err()),
    ];
    for (call, error) in calls {
        let text = error.to_string();
        let (action, error) = call_error(error);
        assert_eq!(error, code, "{call}");
        assert!(action.starts_with(&format!("{call}(")), "{action}");
        assert!(action.contains("libkv_store_toy.so"), "{action}");
        assert!(text.contains("-5"), "{text}");
    }
    let store = opened(&Toy::new(&["FAULT_STRANGE_CODE"]));
    let (_, error) = call_error(store.put_chunk(&hash(1), b"x").unwrap_err());
    assert_eq!(error, CallError::Code { code: 7 });
}

/// The contract only defines the sign of the code.
#[test]
fn any_negative_code_may_mean_missing() {
    for define in ["MISSING_IS=-1", "MISSING_IS=-5", "MISSING_IS=-22"] {
        let store = opened(&Toy::new(&[define]));
        assert_eq!(store.get_chunk(&hash(1)).unwrap(), None, "{define}");
        assert_eq!(store.get_manifest(&name("m")).unwrap(), None, "{define}");
    }
}

#[test]
fn an_output_that_cannot_be_is_an_error() {
    let store = opened(&Toy::new(&["FAULT_NULL_OUTPUT"]));
    store.put_chunk(&hash(1), b"x").unwrap();
    let (_, error) = call_error(store.get_chunk(&hash(1)).unwrap_err());
    assert_eq!(error, CallError::NoBuffer { len: 2 });
    let store = opened(&Toy::new(&["FAULT_ABSURD_LENGTH"]));
    store.put_manifest(&name("m"), b"x").unwrap();
    let (_, error) = call_error(store.get_manifest(&name("m")).unwrap_err());
    assert_eq!(error, CallError::Length { len: usize::MAX });
    // Consumers of other makes follow the pointer, so the kit objects; this one can do without.
    let store = opened(&Toy::new(&["FAULT_NULL_FOR_EMPTY"]));
    store.put_chunk(&hash(1), b"").unwrap();
    assert_eq!(store.get_chunk(&hash(1)).unwrap().unwrap(), "");
}

fn image_fault(path: &Path) -> ImageFault {
    match Library::load(path).unwrap_err() {
        LoadError::Image { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_no_library_of_this_machine_is_named() {
    let toy = Toy::new(&[]);
    let good = fs::read(toy.path()).unwrap();
    let path = toy.folder().join("libkv_store_other.so");
    let fault_of = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        image_fault(&path)
    };
    for (bytes, found) in [
        (&b""[..], "empty"),
        (b"#!/bin/sh\n", "a text"),
        (b"!<arch>\n", "a static library"),
        (b"MZ\x90\0", "a Windows library"),
        (b"\xcf\xfa\xed\xfe\x07\0\0\x01", "a Mach-O file"),
        (b"\x7fEL", "something else"),
    ] {
        let expected = "an ELF file";
        assert_eq!(fault_of(bytes), ImageFault::Format { expected, found });
    }
    // Another machine: the number of the machine, the width, the order of bytes.
    let other: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    let mut bytes = good.clone();
    bytes[18..20].copy_from_slice(&other.to_le_bytes());
    let fault = fault_of(&bytes);
    assert!(matches!(fault, ImageFault::Machine { .. }), "{fault}");
    let text = fault.to_string();
    assert!(text.contains("x86-64") && text.contains("AArch64"), "{text}");
    for (at, value, says) in [(4, 1, "32 bits"), (5, 2, "big-endian")] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let fault = fault_of(&bytes).to_string();
        assert!(fault.contains(says), "{fault}");
    }
    let mut bytes = good.clone();
    bytes[16] = 1;
    assert_eq!(fault_of(&bytes), ImageFault::Kind { found: "an object file" });
    // Cut short anywhere before the end of what would be mapped.
    for len in [5, 20, 63, 64, 100, 4096, good.len() / 3] {
        let fault = fault_of(&good[..len]);
        assert!(matches!(fault, ImageFault::Damaged { .. }), "{len}: {fault}");
    }
    assert_eq!(image_fault(toy.folder()), ImageFault::NotAFile);
    let pipe = toy.folder().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(image_fault(&pipe), ImageFault::NotAFile);
    let error = Library::load(toy.folder().join("not-there.so")).unwrap_err();
    assert!(matches!(error, LoadError::Io { .. }), "{error}");
}

#[test]
fn a_library_that_needs_what_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("needs.c");
    fs::write(&source, "int nowhere(void); int x(void) { return nowhere(); }").unwrap();
    let path = folder.path().join("needs.so");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&path, &source]).status();
    assert!(made.unwrap().success());
    let error = Library::load(&path).unwrap_err();
    assert!(matches!(&error, LoadError::Refused { system, .. } if system.contains("nowhere")), "{error}");
}

/// Changing any byte of the headers gives an error or a working library, never a crash. If the check accepts a file,
/// `dlopen` loads it, so only bytes that `dlopen` itself tolerates are changed.
#[test]
#[cfg(target_os = "linux")]
fn damaged_headers_are_errors() {
    let toy = Toy::new(&[]);
    let good = fs::read(toy.path()).unwrap();
    let path = toy.folder().join("damaged.so");
    for at in (0..20).chain(54..56) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = good.clone();
            if bytes[at] == value {
                continue;
            }
            bytes[at] = value;
            fs::write(&path, &bytes).unwrap();
            // Padding and the version of the ABI may hold what they like.
            if let Err(error) = Library::load(&path) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn search_goes_through_the_folders_and_then_asks_the_system() {
    // The environment belongs to the whole process, so this is a process of its own.
    let first = tempfile::tempdir().unwrap();
    let toy = Toy::new(&[]);
    let search = std::env::join_paths([first.path(), toy.folder()]).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "load::other_process", "--nocapture"])
        .env("KV_STORE_LIBRARY_PATH", search)
        .env("TOY_FOUND_AT", toy.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // Then the system's loader, which has a path of its own.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "load::other_process", "--nocapture"])
        .env_remove("KV_STORE_LIBRARY_PATH")
        .env("LD_LIBRARY_PATH", toy.folder())
        .env("DYLD_LIBRARY_PATH", toy.folder())
        .env("TOY_FOUND_AT", toy.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "the half of a test that has an environment of its own"]
fn other_process() {
    let library = Library::find("toy").unwrap();
    assert_eq!(library.path().as_os_str(), std::env::var_os("TOY_FOUND_AT").unwrap());
    library.open(&uri("toy://here")).unwrap();
    let error = Library::find("nobody").unwrap_err();
    let LoadError::NotFound { file, places, system } = &error else {
        panic!("{error}");
    };
    assert_eq!(file, "libkv_store_nobody.so");
    assert!(!system.is_empty());
    let folders = std::env::var_os("KV_STORE_LIBRARY_PATH").map_or(0, |path| std::env::split_paths(&path).count());
    assert_eq!(places.len(), folders);
    for place in places {
        assert!(error.to_string().contains(&place.display().to_string()), "{error}");
    }
    for scheme in ["", "../toy", "toy/../toy", "/toy"] {
        let error = Library::find(scheme).unwrap_err();
        assert!(matches!(error, LoadError::Scheme { .. }), "{error}");
    }
    // A file that is there and wrong is not skipped.
    if let Some(place) = places.first() {
        fs::write(place, "text").unwrap();
        let error = Library::find("nobody").unwrap_err();
        assert!(matches!(error, LoadError::Image { .. }), "{error}");
    }
}

#[test]
fn a_plugin_made_by_the_macro_is_loaded_like_any_other() {
    let library = Library::load(build::memory_plugin()).unwrap();
    assert_eq!((library.version(), library.prefetches()), (1, false));
    let store = library.open(&uri("memory://here")).unwrap();
    store.put_manifest(&name("m"), b"text").unwrap();
    let other = library.open(&uri("memory://here/")).unwrap();
    assert_eq!(other.get_manifest(&name("m")).unwrap().unwrap(), "text");
    let elsewhere = library.open(&uri("memory://elsewhere")).unwrap();
    assert_eq!(elsewhere.get_manifest(&name("m")).unwrap(), None);
}
