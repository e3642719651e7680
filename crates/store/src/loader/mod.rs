//! Somebody else's backend: from `libkv_store_<scheme>.so` to a [`Backend`](crate::Backend).
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
//! - **Trust.** A library runs in this process, with all its rights: no check replaces knowing where it comes
//!   from. Naming a folder of libraries is the operator's decision, as it is for the system's own loader.
//!   What is checked here finds mistakes: the wrong file, the wrong machine, a table that is not one, outputs
//!   that cannot be.
//! - **Never unloaded.** A library may have started threads, registered handlers and thread-local
//!   destructors, all of which point into it; Rust's and Go's do. There is no moment at which taking its
//!   code away is known to be safe, and nothing is won by it: a process loads a few of them, once.
//! - **Version 1 or 2**, and no other. By the contract a later version only adds functions at the end, so a
//!   table of version 3 could be used as one of version 2. But the number is also the only sign that what the
//!   symbol returned is a table at all, and no version 3 has been published; until one is, 3 is as wrong as 99.

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
