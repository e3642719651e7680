//! What can go wrong with objects.

use transload_store::StoreError;

use super::name::LONGEST_NAME;
use super::record::{LARGEST, LONGEST_META};

/// Why objects could not be put, read, listed or removed. What is merely not there is `None`, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The namespace is empty or too long.
    #[error("a namespace has 1 to {LONGEST_NAME} bytes, not {len}")]
    Namespace {
        /// Its length in bytes.
        len: usize,
    },
    /// A key is empty or too long. Nothing of its batch was done.
    #[error("object {at} of the batch: a key has 1 to {LONGEST_NAME} bytes, not {len}")]
    Key {
        /// Its place in the batch, from 0.
        at: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The meta of an object is too long. Nothing of its batch was done.
    #[error("object {at} of the batch: its meta has {len} bytes, and {LONGEST_META} are the most")]
    Meta {
        /// Its place in the batch, from 0.
        at: usize,
        /// Length of the meta in bytes.
        len: usize,
    },
    /// An object is too large. Nothing of its batch was done.
    #[error("object {at} of the batch: it has {bytes} bytes, and {LARGEST} are the most")]
    TooLarge {
        /// Its place in the batch, from 0.
        at: usize,
        /// Its length in bytes.
        bytes: u64,
    },
}
