//! Creation of folders that survive a loss of power.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Creates a folder and its missing parents, and flushes the entries of all that it created. All of them get `mode`,
/// whatever the umask.
pub(crate) fn make(path: &Path, mode: u32) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    for made in missing {
        fs::set_permissions(made, Permissions::from_mode(mode))?;
        flush(match made.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        })?;
    }
    Ok(())
}

/// Flushes the entries of a folder to disk.
fn flush(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
