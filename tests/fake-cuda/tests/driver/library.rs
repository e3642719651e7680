//! Where the library is, and variants of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Builds `libcuda.so` once in a run of the tests, and returns its file.
pub(crate) fn library() -> PathBuf {
    // With cargo-nextest each test is a process, and cargo takes a quarter of a second to find that nothing is to do.
    let Ok(run) = std::env::var("NEXTEST_RUN_ID") else {
        return build();
    };
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libcuda-built");
    let said = fs::read_to_string(&built).unwrap_or_default();
    if let Some(path) = said.strip_prefix(&format!("{run} ")) {
        return path.into();
    }
    let path = build();
    // Renamed into its place, so that no test reads a part of it.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    write!(file, "{run} {}", path.display()).unwrap();
    file.persist(built).unwrap();
    path
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "-p", "transload-fake-cuda"])
        .args(["--message-format", "json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo build:\n{said}");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| {
            let files = message.get("filenames")?.as_array()?.clone();
            files.into_iter().find_map(|name| {
                let path = PathBuf::from(name.as_str()?);
                (path.file_name()? == "libcuda.so").then_some(path)
            })
        })
        .next()
        .expect("cargo build made no libcuda.so")
}

/// A copy of a library in a folder of its own, without those symbols: their names are overwritten, so no search
/// for them comes to anything.
pub(crate) fn without(library: &Path, symbols: &[&str]) -> TempDir {
    let mut bytes = fs::read(library).unwrap();
    for symbol in symbols {
        let name = format!("\0{symbol}\0").into_bytes();
        let places: Vec<usize> = bytes
            .windows(name.len())
            .enumerate()
            .filter_map(|(at, window)| (window == name).then_some(at))
            .collect();
        assert!(!places.is_empty(), "{symbol} is not there");
        for at in places {
            bytes[at + 1] = b'-';
        }
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libcuda.so"), bytes).unwrap();
    folder
}
