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

/// A loaded `libkv_store_<scheme>.so` whose table has been read. It stays loaded until the process ends, even after the
/// last `Library` is dropped.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    table: Table,
    get_vtable: GetVtable,
    /// Whether it has returned `-ENOENT` for a missing value.
    has_missing_code: AtomicBool,
}

impl Library {
    /// Loads the library of a scheme: the first file of its name in the folders of [`SEARCH_PATH`](super::SEARCH_PATH),
    /// or else what the system's loader finds. A file that exists and cannot be used is an error; the search does not
    /// continue.
    ///
    /// # Errors
    /// Any except [`LoadError::Open`].
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

    /// Loads a library like [`find`](Self::find), but only from the folders of [`SEARCH_PATH`](super::SEARCH_PATH). An
    /// operator's choice takes precedence over built-in backends.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find), but `Ok(None)` instead of [`LoadError::NotFound`].
    pub fn find_named(scheme: &str) -> Result<Option<Arc<Self>>, LoadError> {
        find::file_name(scheme)?;
        Self::locate(scheme).map(Self::load).transpose()
    }

    /// Returns the file that [`find_named`](Self::find_named) would load, without loading it, so that it can be tried
    /// in another process.
    pub fn locate(scheme: &str) -> Option<PathBuf> {
        let mut places = find::places(&find::file_name(scheme).ok()?).into_iter();
        // A dangling link counts as an existing file.
        places.find(|place| place.symlink_metadata().is_ok())
    }

    /// Loads the library in this file, whatever its name.
    ///
    /// # Errors
    /// Any except [`LoadError::NotFound`] and [`LoadError::Open`].
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Self>, LoadError> {
        let path = path.as_ref();
        // The system's loader would search for a name without `/`.
        let path = absolute(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
        image::check(&path)?;
        match dlopen(&path) {
            Ok(library) => Self::of(library, path),
            Err(system) => Err(LoadError::Refused { path, system }),
        }
    }

    /// Returns the path of the library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of its table, at least 1.
    pub fn version(&self) -> u32 {
        self.table.version
    }

    /// Tells whether it has `prefetch_chunks`.
    pub fn prefetches(&self) -> bool {
        self.version() >= VERSION_2 && self.table.prefetch_chunks.is_some()
    }

    /// Tells whether the library has a separate code for missing values, as far as observed.
    pub(super) fn has_missing_code(&self) -> bool {
        self.has_missing_code.load(Relaxed)
    }

    pub(super) fn set_missing_code(&self) {
        self.has_missing_code.store(true, Relaxed);
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn get_vtable(&self) -> GetVtable {
        self.get_vtable
    }

    fn of(library: Dl, path: PathBuf) -> Result<Arc<Self>, LoadError> {
        // SAFETY: by the ABI, a symbol of this name has this type. The library's author guarantees it.
        let symbol = unsafe { library.get::<GetVtable>(GET_VTABLE.to_bytes_with_nul()) };
        let get_vtable = match symbol {
            Ok(symbol) => *symbol,
            // Never unload it, even if it is useless: its constructors have run.
            Err(_) => {
                std::mem::forget(library);
                return Err(LoadError::NoSymbol { path });
            }
        };
        std::mem::forget(library);
        let path = file_of(get_vtable).unwrap_or(path);
        // SAFETY: the library stays loaded, so its function may be called. It returns NULL or a table that lives as
        // long as the library and has the length of its version. The library's author guarantees it.
        let table = unsafe { Table::read(get_vtable()) };
        let wrong = |fault: TableFault| LoadError::Table { path: path.clone(), fault };
        Ok(Arc::new(Self { table: table.map_err(wrong)?, path, get_vtable, has_missing_code: AtomicBool::new(false) }))
    }
}

/// Loads a library with all symbols resolved at once and hidden from other libraries, since two plugins may contain two
/// versions of the same code.
fn dlopen(path: &Path) -> Result<Dl, String> {
    // SAFETY: the library's constructors run, which the operator requested; see "Trust" in the documentation of the
    // loader.
    unsafe { Dl::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        use std::error::Error;
        error.source().map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// Tells whether the loader's error means that this file itself is missing, and not a library that it needs. Only the
/// text of the error shows that.
fn is_absent(file: &str, system: &str) -> bool {
    if cfg!(target_os = "macos") {
        return system.contains("no such file") && !system.contains("not loaded");
    }
    // glibc: `libkv_store_foo.so: cannot open shared object file: No such file or directory`. musl has another text,
    // with the file that needs a missing library at its end.
    system.contains(&format!("{file}: ")) && system.contains("No such file")
}

/// Returns the file that contains a function, which shows what the system's loader has found.
fn file_of(function: GetVtable) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = function as *const c_void;
    // SAFETY: any address may be passed. If the result is not zero, `info` is filled, and its name is NULL or a C
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
