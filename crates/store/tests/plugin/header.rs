//! `include/kv_store_v1.h` against the Rust types, as C and C++ compilers see it.

use std::mem::{offset_of, size_of};
use std::process::Command;

use transload_store::abi::{self, Vtable};
use transload_store::{ChunkHash, ManifestName};

use crate::build::{compile, include};

fn expected() -> String {
    let mut text = format!("kv_store_vtable {}\n", size_of::<Vtable>());
    macro_rules! field {
        ($($name:ident: $size:expr),* $(,)?) => {
            $(text += &format!("{} {} {}\n", stringify!($name), offset_of!(Vtable, $name), $size);)*
        };
    }
    let pointer = size_of::<usize>();
    field!(
        version: size_of::<u32>(),
        open: pointer,
        close: pointer,
        put_chunk: pointer,
        get_chunk: pointer,
        put_manifest: pointer,
        get_manifest: pointer,
        delete_manifest: pointer,
        prefetch_chunks: pointer,
    );
    let constants = [
        ("VERSION_1", abi::VERSION_1 as i64),
        ("VERSION_2", abi::VERSION_2 as i64),
        ("STORED", abi::STORED.into()),
        ("ALREADY_THERE", abi::ALREADY_THERE.into()),
        ("MISSING", abi::MISSING.into()),
        ("ERROR", abi::ERROR.into()),
        ("INVALID", abi::INVALID.into()),
        ("HASH_MAX", ChunkHash::MAX as i64),
        ("NAME_MAX", ManifestName::MAX as i64),
    ];
    for (name, value) in constants {
        text += &format!("KV_STORE_{name} {value}\n");
    }
    text
}

fn agrees(compiler: &str, flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("header");
    compile(compiler, "header.c", &program, flags);
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected());
}

#[test]
fn c_lays_the_table_out_as_rust_does() {
    agrees("cc", &["-std=c99", "-pedantic"]);
    agrees("cc", &["-std=c11", "-pedantic", "-Wconversion", "-Wshadow"]);
}

#[test]
fn cpp_lays_the_table_out_as_rust_does() {
    if Command::new("c++").arg("--version").output().is_err() {
        println!("NOT RUN: there is no C++ compiler (c++)");
        return;
    }
    agrees("c++", &["-x", "c++", "-std=c++11", "-pedantic"]);
}

/// The codes are those of errno, so they make sense to users who know only errno.
#[test]
fn the_codes_are_those_of_errno() {
    assert_eq!([abi::MISSING, abi::ERROR, abi::INVALID], [-libc::ENOENT, -libc::EIO, -libc::EINVAL]);
}

#[test]
fn the_header_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("alone.o");
    let flags = ["-std=c99", "-pedantic", "-fsyntax-only", "-x", "c"];
    let output = Command::new("cc")
        .args(flags)
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(include().join("kv_store_v1.h"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!object.exists());
}
