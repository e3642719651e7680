//! KV-cache blocks that outlive their process.
//!
//! `kv_store_v1` is a C ABI of eight functions between an inference engine and a storage backend: *put
//! these bytes under this hash*, *give me the bytes of this hash*, and named manifests that appear at
//! once and whole. This crate is both of its sides, and what we build on it:
//!
//! | to do this | begin with | feature |
//! |---|---|---|
//! | keep bytes in memory, a folder, a Redis or an S3 store, or in tiers of these | [`open`], [`backend`] | `file`, `redis`, `s3` |
//! | write a backend | [`Backend`], [`export!`](crate::export!) | |
//! | prove that a backend keeps the contract | [`conformance`] | |
//! | use somebody else's backend | [`loader`] | |
//! | save a request's blocks and restore them into another deployment | [`archive`] | `archive`; `cuda` for those in GPU memory |
//! | keep bytes of an engine under its own keys | [`objects`] | `objects` |
//! | keep states of llama.cpp | [`llama`] | `llama` |
//! | read and write the cache files of erllama | [`kvc`] | |

pub mod abi;
#[cfg(feature = "archive")]
pub mod archive;
pub mod backend;
pub mod conformance;
mod error;
pub mod export;
mod folder;
mod hash;
pub mod kvc;
#[cfg(feature = "llama")]
pub mod llama;
pub mod loader;
mod name;
#[cfg(feature = "objects")]
pub mod objects;
mod open;
pub mod period;
mod reading;
#[cfg(any(feature = "archive", feature = "objects"))]
mod record;
pub mod size;
mod uri;
#[cfg(any(feature = "archive", feature = "file", feature = "objects"))]
mod work;

pub use backend::{Backend, Put};
pub use error::StoreError;
pub use hash::ChunkHash;
pub use name::ManifestName;
pub use open::{is_built_in, open, open_existing};
#[cfg(any(feature = "archive", feature = "objects"))]
pub use reading::readable;
pub use uri::{StoreUri, UriError};
