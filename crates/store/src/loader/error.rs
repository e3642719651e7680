//! Errors of loading a library and of calling its functions.

use std::ffi::c_int;
use std::io;
use std::path::PathBuf;

use crate::error::StoreError;

/// Describes why a URI's library could not be loaded or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The scheme is not valid in a file name.
    #[error("`{scheme}` is not a URI's scheme")]
    Scheme {
        /// The text that was passed.
        scheme: String,
    },
    /// There is no such library.
    #[error(
        "there is no {file}: {}the system's loader says: {system}",
        looked_at(.places)
    )]
    NotFound {
        /// The library's file name.
        file: String,
        /// The files that were searched for, in order, before the system's loader was called.
        places: Vec<PathBuf>,
        /// The error of the system's loader.
        system: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not a library of this machine.
    #[error("{} is not a library of this machine: {fault}", .path.display())]
    Image {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        fault: ImageFault,
    },
    /// The system's loader refused the file.
    #[error("{} cannot be loaded: {system}", .path.display())]
    Refused {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system's loader, such as a missing symbol or library.
        system: String,
    },
    /// The library does not export `kv_store_get_vtable`, so it is not a plugin.
    #[error("{} is not a kv_store_v1 library: it does not export kv_store_get_vtable", .path.display())]
    NoSymbol {
        /// The path of the file.
        path: PathBuf,
    },
    /// The library's table is not usable.
    #[error("{} is not a usable kv_store_v1 library: {fault}", .path.display())]
    Table {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the table.
        fault: TableFault,
    },
    /// The library's `open` returned NULL. By the contract the library has printed the reason on stderr.
    #[error("{} could not open {uri}; its reason is on stderr", .path.display())]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The URI that was passed.
        uri: String,
    },
}

impl From<LoadError> for StoreError {
    fn from(error: LoadError) -> Self {
        Self::remote("loading the store's library", error)
    }
}

fn looked_at(places: &[PathBuf]) -> String {
    if places.is_empty() {
        return "KV_STORE_LIBRARY_PATH is not set, and ".into();
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    format!("not as {}, and ", places.join(", nor as "))
}

/// Describes why a file is not a library of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFault {
    /// It is a folder, a device or a pipe.
    #[error("it is not a file")]
    NotAFile,
    /// It is a file of another format.
    #[error("it is {found}, not {expected}")]
    Format {
        /// The format that this machine loads: `an ELF file`.
        expected: &'static str,
        /// The format of the file: `empty`, `a text`, `a Mach-O file`.
        found: &'static str,
    },
    /// It is built for another machine.
    #[error("it is made for {found}, and this process is {expected}")]
    Machine {
        /// The machine of this process.
        expected: String,
        /// The machine of the file.
        found: String,
    },
    /// It is an ELF file, but not a shared library.
    #[error("it is {found}, not a shared library")]
    Kind {
        /// The kind of the file: `an object file`.
        found: &'static str,
    },
    /// It is truncated, or its headers are damaged.
    #[error("it is damaged: {how}")]
    Damaged {
        /// A description of the damage.
        how: String,
    },
}

/// Describes why a table is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableFault {
    /// `kv_store_get_vtable` returned NULL.
    #[error("kv_store_get_vtable returned NULL")]
    Null,
    /// The version is 0.
    #[error("its table is of version {found}; versions begin with 1")]
    Version {
        /// The version in the table.
        found: u32,
    },
    /// A function that every version has is NULL.
    #[error("`{function}` is NULL in its table")]
    NullFunction {
        /// The function's name.
        function: &'static str,
    },
}

/// An unsuccessful call of a library's function. It is the source of a [`StoreError::Remote`], whose action names the
/// function and the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The function failed. By the contract the library has printed the reason on stderr.
    #[error("it returned {code}; its reason is on stderr")]
    Refused {
        /// The negative code.
        code: c_int,
    },
    /// The function returned a code that the contract does not define.
    #[error("it returned {code}, which kv_store_v1 gives no meaning to")]
    Code {
        /// The undefined code.
        code: c_int,
    },
    /// The function succeeded and returned a length without a buffer.
    #[error("it returned 0 and {len} bytes, but no buffer")]
    NoBuffer {
        /// The length that was returned.
        len: usize,
    },
    /// The function succeeded and returned a length that no buffer can have.
    #[error("it returned 0 and a buffer of {len} bytes, which cannot be")]
    Length {
        /// The length that was returned.
        len: usize,
    },
}
