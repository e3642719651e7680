//! KV-cache blocks that outlive their process.
//!
//! `kv_store_v1` is a C ABI of eight functions between an inference engine and a storage backend: put bytes under a
//! hash, get the bytes of a hash, and replace named manifests atomically. This crate is both of its sides:
//!
//! | to do this | begin with | feature |
//! |---|---|---|
//! | keep bytes in memory, a folder, Redis, S3, or tiers of these | [`open`], [`backend`] | `file`, `redis`, `s3` |
//! | write a backend | [`Backend`], [`export!`](crate::export!) | |
//! | check that a backend keeps the contract | [`conformance`] | |
//! | use a backend in another library | [`loader`] | |
//!
//! It gives the bytes no meaning: `transload-archive` defines how a request's blocks, an engine's objects or a state of
//! llama.cpp are stored.

pub mod abi;
pub mod backend;
pub mod conformance;
mod error;
pub mod export;
mod folder;
mod hash;
pub mod loader;
mod name;
mod open;
mod period;
mod reading;
mod size;
mod uri;
mod work;

pub use backend::{Backend, Put};
pub use error::StoreError;
pub use hash::ChunkHash;
pub use name::ManifestName;
pub use open::{is_built_in, open, open_existing};
pub use uri::{StoreUri, UriError};

/// Functions that `transload-archive` uses too. They are not part of the interface.
#[doc(hidden)]
pub mod internal {
    pub use crate::backend::is_leftover;
    pub use crate::reading::readable;
    pub use crate::work::on_threads;

    #[cfg(feature = "file")]
    pub mod format {
        pub use crate::backend::file::format::checksum;
    }
    #[cfg(feature = "file")]
    pub mod manifest {
        pub use crate::backend::file::format::manifest::Manifest;
    }
    #[cfg(feature = "file")]
    pub mod pack {
        pub use crate::backend::file::format::pack::decode;
    }
    #[cfg(all(feature = "file", any(test, feature = "simulated")))]
    pub mod simulated {
        pub use crate::backend::file::simulated::{Mistake, Random, SimulatedDisk};
    }
    pub mod period {
        pub use crate::period::{PeriodError, parse, parse_limit};
    }
    pub mod size {
        pub use crate::size::{SizeError, parse};
    }
}
