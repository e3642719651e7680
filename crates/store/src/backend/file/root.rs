//! Finding or creating the root of a store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Access, Disk, How, Lock, RealDisk};
use super::format::{self, twice};
use super::{locks, paths};
use crate::error::StoreError;
use crate::folder;

#[derive(Debug)]
pub(super) struct Root {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) prefix: String,
}

/// The longest time that creating a store waits for another process that creates it.
const TIMEOUT: Duration = Duration::from_secs(60);

const LONGEST_MARKER: u64 = 4096;

pub(super) fn open(path: &Path, group: bool) -> Result<Root, StoreError> {
    let path = plain(path)?;
    if let Some(root) = nearest(&path)? {
        return Ok(root);
    }
    let access = if group { Access::Group } else { Access::Owner };
    folder::make(&path, access.folder()).map_err(StoreError::io(format!("make {}", path.display())))?;
    let disk = open_disk(&path, access)?;
    create(&*disk).map_err(|error| match error {
        StoreError::Unsupported { why, .. } => refused(&path, &why),
        error => error,
    })?;
    // Look again: another process may have created it, with another access mode.
    nearest(&path)?.ok_or_else(|| StoreError::NotThere { place: path.display().to_string() })
}

pub(super) fn open_existing(path: &Path) -> Result<Root, StoreError> {
    let path = plain(path)?;
    nearest(&path)?.ok_or_else(|| StoreError::NotThere { place: path.display().to_string() })
}

/// Finds the nearest ancestor of `path` that is a store. The rest of the path becomes a prefix of manifest names.
fn nearest(path: &Path) -> Result<Option<Root>, StoreError> {
    for root in path.ancestors() {
        let marker = root.join(paths::MARKER);
        let marked = match fs::symlink_metadata(&marker) {
            Ok(marker) => marker.is_file().then(|| Access::of(marker.mode())),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => None,
            // Do not treat it as missing, or a second store would be created inside it.
            Err(error) => {
                let action = format!("look for a store at {}", marker.display());
                return Err(StoreError::io(action)(error));
            }
        };
        if let Some(access) = marked {
            let rest = path.strip_prefix(root).unwrap_or(Path::new(""));
            let prefix =
                rest.to_str().ok_or_else(|| refused(path, "what follows the store's root in it is not UTF-8"))?;
            return Ok(Some(Root { disk: open_disk(root, access)?, prefix: prefix.to_owned() }));
        }
    }
    Ok(None)
}

fn open_disk(root: &Path, access: Access) -> Result<Arc<dyn Disk>, StoreError> {
    let disk = RealDisk::open(root, access);
    let disk = disk.map_err(StoreError::io(format!("open {}", root.display())))?;
    Ok(Arc::new(disk))
}

fn plain(path: &Path) -> Result<PathBuf, StoreError> {
    if !path.is_absolute() {
        return Err(refused(path, "it is not absolute"));
    }
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => return Err(refused(path, "it contains `..`")),
            part => plain.push(part),
        }
    }
    Ok(plain)
}

fn refused(path: &Path, why: &str) -> StoreError {
    StoreError::Unsupported { what: "a store here", why: format!("{}: {why}", path.display()) }
}

/// Creates a store in an empty folder, unless it is one already.
/// A file that means *not ready yet* is written first and renamed to the marker last. So the next open finishes what a
/// crash interrupted, and everything below a marker is durable.
pub(super) fn create(disk: &dyn Disk) -> Result<(), StoreError> {
    let failed = || StoreError::io("make a store");
    let lock = disk.open("", How::Folder).map_err(failed())?;
    lock.lock(Lock::Exclusive, TIMEOUT).map_err(locks::failed("lock", "the folder", TIMEOUT))?;
    let there = disk.list("").map_err(failed())?;
    if there.iter().any(|name| name == paths::MARKER) {
        return check_marker(disk);
    }
    if !there.is_empty() && !there.iter().any(|name| name.starts_with(paths::NEW_MARKER)) {
        return Err(StoreError::Unsupported {
            what: "a store here",
            why: "the folder is not empty, and it is not a store".into(),
        });
    }
    make(disk, !there.is_empty()).map_err(failed())
}

/// Creates the files. `again` means that an earlier attempt was not finished.
fn make(disk: &dyn Disk, again: bool) -> io::Result<()> {
    let rewrite_entry = |path: &str| if again { rewrite_entry(disk, path) } else { Ok(false) };
    let file = |path: &str, content: &[u8]| {
        let file = match rewrite_entry(path)? {
            true => disk.open(path, How::Write)?,
            false => disk.open(path, How::Create)?,
        };
        file.set_len(0)?;
        file.write_all_at(content, 0)?;
        file.sync()
    };
    file(paths::NEW_MARKER, format::MARKER)?;
    disk.sync_folder("")?;
    let above = [paths::TEMPORARY, paths::PACKS, paths::MANIFESTS].map(str::to_owned);
    for folder in above.into_iter().chain(paths::pack_folders()).chain(paths::manifest_folders()) {
        if !rewrite_entry(&folder)? {
            disk.make_folder(&folder)?;
        }
    }
    file(paths::GENERATION, &twice(0))?;
    file(paths::USAGE, &twice(0))?;
    file(paths::STORE_LOCK, b"")?;
    file(paths::GATE_LOCK, b"")?;
    disk.sync_folder(paths::PACKS)?;
    disk.sync_folder(paths::MANIFESTS)?;
    disk.sync_folder("")?;
    disk.rename(paths::NEW_MARKER, paths::MARKER)?;
    disk.sync_folder("").inspect_err(|_| {
        // Keep the next process that opens the store from taking the marker for durable.
        let _ = disk.rename(paths::MARKER, paths::NEW_MARKER);
    })
}

/// Moves what an earlier attempt left away and back, and returns whether there was anything. A flush that failed then
/// may have lost it, and the next flush only writes later changes.
fn rewrite_entry(disk: &dyn Disk, path: &str) -> io::Result<bool> {
    let away = paths::away(path);
    match disk.rename(path, &away) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match disk.rename(&away, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true),
    }
}

pub(super) fn check_marker(disk: &dyn Disk) -> Result<(), StoreError> {
    let marker = disk
        .open(paths::MARKER, How::Read)
        .and_then(|file| file.read_all(LONGEST_MARKER))
        .map_err(StoreError::io(format!("read {}", paths::MARKER)))?;
    if marker == format::MARKER {
        return Ok(());
    }
    Err(StoreError::Damaged {
        what: paths::MARKER.into(),
        how: format!(
            "it is not that of a file store of version 1, but {:?}",
            String::from_utf8_lossy(&marker[..marker.len().min(40)])
        ),
    })
}
