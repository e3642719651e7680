//! Backends of other vendors: loads a `libkv_store_<scheme>.so` as a [`Backend`](crate::Backend).
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use transload_store::{Backend, StoreUri, loader::Library};
//!
//! let uri: StoreUri = "foo://host/kv".parse()?;
//! let store = Library::find(uri.scheme())?.open(&uri)?;
//! store.put_chunk(&blake3::hash(b"bytes").into(), b"bytes")?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Trust.** A library runs in this process, with all its rights. No check replaces knowing where it comes from.
//!   Naming a folder of libraries is the operator's decision, as it is for the system's own loader. The checks here
//!   find mistakes: a wrong file, a wrong machine, an invalid table, impossible outputs.
//! - **Never unloaded.** A library may have started threads, or registered handlers and thread-local destructors, which
//!   point into its code; Rust's and Go's libraries do. There is no safe moment to unload it, and nothing to gain: a
//!   process loads only a few libraries, once.
//! - **Versions.** By the contract a later version only adds functions at the end, so a table of a version after 2 is
//!   used as one of version 2.

mod buffer;
mod error;
mod find;
mod image;
mod library;
mod loaded;
mod table;

pub use error::{CallError, ImageFault, LoadError, TableFault};
pub use find::SEARCH_PATH;
pub use library::Library;
pub use loaded::Loaded;
