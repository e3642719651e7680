//! Reads that have to come from the disk.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{Advice, fadvise, syncfs};

/// Sends what is written and not yet there to the disk, and then everything in a folder out of the page
/// cache, so that reading it next reads the disk.
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
