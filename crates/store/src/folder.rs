//! Folders that stay where they were made, also after a loss of power.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Makes a folder, and those above it that are missing, and flushes the entries of what was made.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    fs::create_dir_all(path)?;
    for made in missing {
        flush(match made.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        })?;
    }
    Ok(())
}

/// Makes the entries of a folder durable.
pub(crate) fn flush(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
