//! Plugins used by a C program, by the loader and by the conformance kit.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use transload_store::loader::Library;

use crate::build::{Environment, compile, memory_plugin, plugin};
use crate::check::check;

struct Consumer {
    folder: TempDir,
}

impl Consumer {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["-std=gnu11", "-pedantic", "-pthread", "-ldl"];
        compile("cc", "consumer.c", &folder.path().join("consumer"), &flags);
        Self { folder }
    }

    fn command(&self, library: &Path, uri: &str, environment: &Environment) -> Command {
        let mut command = Command::new(self.folder.path().join("consumer"));
        command.arg(library).arg(uri).envs(environment.iter().cloned());
        command
    }
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

pub(crate) fn drives(library: &Path, uri: &str, environment: &Environment, version: u32) {
    let consumer = Consumer::new();
    let output = consumer.command(library, uri, environment).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let expected = format!("version {version}, 0 failures\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

/// Runs the C program under valgrind, which must find no invalid access and no leak.
pub(crate) fn drives_without_leaks(library: &Path, uri: &str, environment: &Environment) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("NOT RUN: there is no valgrind");
        return;
    }
    let consumer = Consumer::new();
    let plain = consumer.command(library, uri, environment);
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .envs(environment.iter().cloned());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

pub(crate) fn exports(library: &Path) {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let Ok(output) = output else {
        println!("NOT RUN: there is no nm");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["kv_store_get_vtable"], "of {}", library.display());
}

/// Checks that closing the library does not unload it: DT_FLAGS_1 has DF_1_NODELETE.
#[cfg(target_os = "linux")]
pub(crate) fn stays_loaded(library: &Path) {
    use object::elf::{DF_1_NODELETE, DT_FLAGS_1, FileHeader64};
    use object::endian::Endianness;
    use object::read::elf::{Dyn, ElfFile, FileHeader};

    let bytes = std::fs::read(library).unwrap();
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*bytes).unwrap();
    let (header, endian) = (file.elf_header(), file.endian());
    let sections = header.sections(endian, &*bytes).unwrap();
    let (dynamic, _) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let flags = dynamic.iter().find(|entry| entry.tag(endian) == DT_FLAGS_1).map_or(0, |entry| entry.val(endian));
    assert_ne!(flags & DF_1_NODELETE.0, 0, "of {}: {flags:x}", library.display());
}

#[test]
fn c_drives_the_memory_plugin() {
    // Not held to one symbol: the example is built with what the tests need, which has functions for C.
    let library = memory_plugin();
    drives(&library, "memory://consumer", &[], 1);
    drives_without_leaks(&library, "memory://consumer", &[]);
}

pub(crate) fn file_plugin() -> PathBuf {
    plugin(&["-p", "transload-kv-store-file"], "libkv_store_file.so")
}

#[test]
fn c_drives_the_file_plugin() {
    let library = file_plugin();
    exports(&library);
    #[cfg(target_os = "linux")]
    stays_loaded(&library);
    let folder = tempfile::tempdir().unwrap();
    let uri = |name: &str| format!("file://{}", folder.path().join(name).display());
    drives(&library, &uri("plain"), &[], 2);
    drives_without_leaks(&library, &uri("valgrind"), &[]);
}

#[test]
fn the_file_plugin_keeps_the_contract() {
    let library = file_plugin();
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file://{}", folder.path().join("store").display());
    let report = check(&library, &uri);
    assert!(report.is_clean(), "{report}");
    let store = Library::load(&library).unwrap().open(&uri.parse().unwrap()).unwrap();
    assert_eq!(store.library().version(), 2);
}
