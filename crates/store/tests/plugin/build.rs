//! Building what the tests need: C with `cc`, plugins with cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Environment variables for a consumer's process. They contain settings that the plugin's URI does not.
pub(crate) type Environment = [(&'static str, String)];

pub(crate) fn c_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

pub(crate) fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

pub(crate) fn compile(compiler: &str, source: &str, to: &Path, flags: &[&str]) {
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-I"])
        .arg(include())
        .args(["-o".as_ref(), to.as_os_str()])
        .args(flags.iter().filter(|flag| !flag.starts_with("-l")))
        .arg(c_sources().join(source))
        .args(flags.iter().filter(|flag| flag.starts_with("-l")))
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; the tests need a C compiler"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {source} {flags:?}:\n{said}");
}

/// `tests/c/toy.c` as `libkv_store_toy.so` in a folder of its own, with these faults.
pub(crate) struct Toy {
    folder: TempDir,
}

impl Toy {
    pub(crate) fn new(defines: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let defines: Vec<String> = defines.iter().map(|name| format!("-D{name}")).collect();
        let mut flags = vec!["-shared", "-fPIC", "-pthread", "-Wno-unused-parameter"];
        flags.extend(defines.iter().map(String::as_str));
        // A fault may leave the rest of a function without use.
        flags.extend(["-Wno-unused-function", "-Wno-unused-const-variable"]);
        compile("cc", "toy.c", &folder.path().join("libkv_store_toy.so"), &flags);
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join("libkv_store_toy.so")
    }
}

/// Builds a cdylib of this workspace and returns its path. Cargo does nothing if it is up to date.
pub(crate) fn plugin(arguments: &[&str], file: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--message-format", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo build {arguments:?}:\n{said}");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| {
            let files = message.get("filenames")?.as_array()?.clone();
            files.into_iter().find_map(|name| {
                let path = PathBuf::from(name.as_str()?);
                (path.file_name()? == file).then_some(path)
            })
        })
        .next()
        .unwrap_or_else(|| panic!("cargo build {arguments:?} made no {file}"))
}

/// `MemoryStore` as a plugin: the example `kv_store_memory`.
pub(crate) fn memory_plugin() -> PathBuf {
    plugin(&["-p", "transload-kv-store-file", "--example", "kv_store_memory"], "libkv_store_memory.so")
}
