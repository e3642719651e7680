//! A loaded library.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libloading::os::unix::{Library as Dl, RTLD_LOCAL, RTLD_NOW};

use super::error::{LoadError, TableFault};
use super::table::Table;
use super::{find, image};
use crate::abi::{GET_VTABLE, GetVtable, VERSION_2};

/// A `libkv_store_<scheme>.so` in this process, whose table has been read. It stays loaded as long as the
/// process lives, also after the last of these is dropped.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    table: Table,
    get_vtable: GetVtable,
    /// Whether it has said `-ENOENT` for something that is missing.
    tells_missing: AtomicBool,
}

impl Library {
    /// Loads the library of a scheme: the first file of its name in the folders of
    /// [`SEARCH_PATH`](super::SEARCH_PATH), or else what the system's loader finds. A file that is there and
    /// is wrong is an error, and not a reason to look further.
    ///
    /// # Errors
    /// Any but [`LoadError::Open`].
    pub fn find(scheme: &str) -> Result<Arc<Self>, LoadError> {
        if let Some(library) = Self::find_named(scheme)? {
            return Ok(library);
        }
        let file = find::file_name(scheme)?;
        let places = find::places(&file);
        match dlopen(Path::new(&file)) {
            Ok(library) => Self::of(library, PathBuf::from(file)),
            Err(system) if is_absent(&file, &system) => Err(LoadError::NotFound { file, places, system }),
            Err(system) => Err(LoadError::Refused { path: PathBuf::from(file), system }),
        }
    }

    /// The same, only in those folders: what an operator has named goes before everything else.
    ///
    /// # Errors
    /// As [`find`](Self::find), but [`LoadError::NotFound`] is `None`.
    pub fn find_named(scheme: &str) -> Result<Option<Arc<Self>>, LoadError> {
        find::file_name(scheme)?;
        Self::locate(scheme).map(Self::load).transpose()
    }

    /// The file that [`find_named`](Self::find_named) would load, without loading it: whoever starts another
    /// process to try it stays clear of what it does.
    pub fn locate(scheme: &str) -> Option<PathBuf> {
        let mut places = find::places(&find::file_name(scheme).ok()?).into_iter();
        // A link that leads nowhere is a file that is there.
        places.find(|place| place.symlink_metadata().is_ok())
    }

    /// Loads the library in this file, whatever its name is.
    ///
    /// # Errors
    /// Any but [`LoadError::NotFound`] and [`LoadError::Open`].
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Self>, LoadError> {
        let path = path.as_ref();
        // A name without `/` would make the system's loader search for it.
        let path = absolute(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        image::check(&path)?;
        match dlopen(&path) {
            Ok(library) => Self::of(library, path),
            Err(system) => Err(LoadError::Refused { path, system }),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of its table, 1 or 2.
    pub fn version(&self) -> u32 {
        self.table.version
    }

    /// Whether it has `prefetch_chunks`.
    pub fn prefetches(&self) -> bool {
        self.version() >= VERSION_2 && self.table.prefetch_chunks.is_some()
    }

    /// Whether it has been seen to have a code of its own for what is missing.
    pub(super) fn tells_missing(&self) -> bool {
        self.tells_missing.load(Relaxed)
    }

    pub(super) fn told_missing(&self) {
        self.tells_missing.store(true, Relaxed);
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn get_vtable(&self) -> GetVtable {
        self.get_vtable
    }

    fn of(library: Dl, path: PathBuf) -> Result<Arc<Self>, LoadError> {
        // SAFETY: a symbol of this name has this type: that is the ABI, and the library's author keeps it.
        let symbol = unsafe { library.get::<GetVtable>(GET_VTABLE.to_bytes_with_nul()) };
        let get_vtable = match symbol {
            Ok(symbol) => *symbol,
            // Never unloaded, also where it is of no use: its constructors have run.
            Err(_) => {
                std::mem::forget(library);
                return Err(LoadError::NoSymbol { path });
            }
        };
        std::mem::forget(library);
        let path = file_of(get_vtable).unwrap_or(path);
        // SAFETY: the library stays loaded, so its function may be called; it returns NULL or a table that
        // lives as long as the library, and has the length that its version gives it. Its author keeps that.
        let table = unsafe { Table::read(get_vtable()) };
        let wrong = |fault: TableFault| LoadError::Table { path: path.clone(), fault };
        Ok(Arc::new(Self { table: table.map_err(wrong)?, path, get_vtable, tells_missing: AtomicBool::new(false) }))
    }
}

/// Everything resolved now, and nothing of it visible to other libraries: two plugins may hold two versions of
/// the same code.
fn dlopen(path: &Path) -> Result<Dl, String> {
    // SAFETY: the library's constructors run. That is what the operator asked for; see "Trust" above.
    unsafe { Dl::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        use std::error::Error;
        error.source().map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// Whether the system's loader means this file itself by what is not there, and not one that it needs. There is
/// nothing but words to tell that by.
fn is_absent(file: &str, system: &str) -> bool {
    if cfg!(target_os = "macos") {
        return system.contains("no such file") && !system.contains("not loaded");
    }
    // `libkv_store_foo.so: cannot open shared object file: No such file or directory`, or musl's words, in
    // which a file that needs another is named at the end.
    system.contains(&format!("{file}: ")) && system.contains("No such file")
}

/// The file that a function lies in, which tells what the system's loader has found.
fn file_of(function: GetVtable) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = function as *const c_void;
    // SAFETY: any address may be asked for; a non-zero answer has filled `info`, whose name is NULL or a C
    // string that lives as long as the library is loaded.
    let name = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        if name.is_null() {
            return None;
        }
        CStr::from_ptr(name)
    };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    path.is_absolute().then(|| path.to_owned())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_itself_is_absent() {
        let file = "libkv_store_foo.so";
        for absent in [
            "libkv_store_foo.so: cannot open shared object file: No such file or directory",
            "Error loading shared library libkv_store_foo.so: No such file or directory",
        ] {
            assert!(is_absent(file, absent), "{absent}");
        }
        for there in [
            "libneeded.so.1: cannot open shared object file: No such file or directory",
            "Error loading shared library libneeded.so.1: No such file or directory (needed by /x/libkv_store_foo.so)",
            "/x/libkv_store_foo.so: undefined symbol: nowhere",
            "/x/libkv_store_foo.so: file too short",
        ] {
            assert!(!is_absent(file, there), "{there}");
        }
        let nobody = "libkv_store_nobody.so";
        assert!(is_absent(nobody, &dlopen(Path::new(nobody)).unwrap_err()));
    }
}
