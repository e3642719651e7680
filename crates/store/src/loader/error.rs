//! Every way in which a library can be wrong.

use std::ffi::c_int;
use std::io;
use std::path::PathBuf;

use crate::error::StoreError;

/// Why there is no store behind a URI's library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The scheme would not make a file name.
    #[error("`{scheme}` is not a URI's scheme")]
    Scheme {
        /// What was given.
        scheme: String,
    },
    /// There is no such library.
    #[error(
        "there is no {file}: {}the system's loader says: {system}",
        looked_at(.places)
    )]
    NotFound {
        /// Its file name.
        file: String,
        /// The files that were looked for, in that order, before the system's loader was asked.
        places: Vec<PathBuf>,
        /// What the system's loader said.
        system: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a library of this machine.
    #[error("{} is not a library of this machine: {fault}", .path.display())]
    Image {
        /// Which file.
        path: PathBuf,
        /// What it is.
        fault: ImageFault,
    },
    /// The system's loader refused the file.
    #[error("{} cannot be loaded: {system}", .path.display())]
    Refused {
        /// Which file.
        path: PathBuf,
        /// What the system's loader said: a symbol or a library that it needs is not there.
        system: String,
    },
    /// It does not export `kv_store_get_vtable`, so it is a library of something else.
    #[error("{} is not a kv_store_v1 library: it does not export kv_store_get_vtable", .path.display())]
    NoSymbol {
        /// Which file.
        path: PathBuf,
    },
    /// Its table is not one.
    #[error("{} is not a usable kv_store_v1 library: {fault}", .path.display())]
    Table {
        /// Which file.
        path: PathBuf,
        /// What is wrong with the table.
        fault: TableFault,
    },
    /// Its `open` returned NULL. By the contract the reason is on stderr, printed by the library.
    #[error("{} could not open {uri}; its reason is on stderr", .path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// The URI it was given.
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

/// Why a file is not a library of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFault {
    /// It is a folder, a device or a pipe.
    #[error("it is not a file")]
    NotAFile,
    /// It is a file of another kind.
    #[error("it is {found}, not {expected}")]
    Format {
        /// What this machine loads: `an ELF file`.
        expected: &'static str,
        /// What it is: `empty`, `a text`, `a Mach-O file`.
        found: &'static str,
    },
    /// It is made for another machine.
    #[error("it is made for {found}, and this process is {expected}")]
    Machine {
        /// This process.
        expected: String,
        /// The file.
        found: String,
    },
    /// It is an ELF file, but not a shared library.
    #[error("it is {found}, not a shared library")]
    Kind {
        /// What it is: `an object file`.
        found: &'static str,
    },
    /// It is cut short or its headers are damaged.
    #[error("it is damaged: {how}")]
    Damaged {
        /// What does not fit.
        how: String,
    },
}

/// Why a table is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableFault {
    /// `kv_store_get_vtable` returned NULL.
    #[error("kv_store_get_vtable returned NULL")]
    Null,
    /// The version is 0.
    #[error("its table is of version {found}; versions begin with 1")]
    Version {
        /// What stands in the table.
        found: u32,
    },
    /// A function that every version has is NULL.
    #[error("`{function}` is NULL in its table")]
    NullFunction {
        /// The function's name.
        function: &'static str,
    },
}

/// What a library's function did that is no success. It is the source of a
/// [`StoreError::Remote`], whose action names the function and the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It said that it failed. By the contract the reason is on stderr, printed by the library.
    #[error("it returned {code}; its reason is on stderr")]
    Refused {
        /// The negative code.
        code: c_int,
    },
    /// It returned a code that the contract does not know.
    #[error("it returned {code}, which kv_store_v1 gives no meaning to")]
    Code {
        /// The code.
        code: c_int,
    },
    /// It said that it succeeded and gave a length without a buffer.
    #[error("it returned 0 and {len} bytes, but no buffer")]
    NoBuffer {
        /// The length it gave.
        len: usize,
    },
    /// It said that it succeeded and gave a length that no buffer has.
    #[error("it returned 0 and a buffer of {len} bytes, which cannot be")]
    Length {
        /// The length it gave.
        len: usize,
    },
}
