//! Makes reads come from the disk.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{Advice, fadvise, syncfs};

/// Flushes a folder to the disk and evicts it from the page cache, so that the next read comes from the disk.
pub(super) fn make_cold(folder: &Path) -> io::Result<()> {
    syncfs(File::open(folder)?)?;
    evict(folder)
}

fn evict(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            evict(&entry.path())?;
        } else if kind.is_file() {
            fadvise(File::open(entry.path())?, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}
