//! Folders that stay where they were made, also after a loss of power.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Makes a folder, and those above it that are missing, and flushes the entries of what was made. With a mode, that is
/// the mode of all that are made, whatever the umask.
pub fn make(path: &Path, mode: Option<u32>) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    if let Some(mode) = mode {
        builder.mode(mode);
    }
    builder.create(path)?;
    for made in missing {
        if let Some(mode) = mode {
            fs::set_permissions(made, Permissions::from_mode(mode))?;
        }
        flush(match made.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        })?;
    }
    Ok(())
}

/// Makes the entries of a folder durable.
pub fn flush(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
