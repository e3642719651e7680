//! Errors of objects.

use transload_store::StoreError;

use super::name::LONGEST_NAME;
use super::record::{LARGEST, LONGEST_META};

/// Describes why objects could not be put, read, listed or removed. A missing object is `None`, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The namespace is empty or too long.
    #[error("a namespace has 1 to {LONGEST_NAME} bytes, not {len}")]
    Namespace {
        /// The namespace's length in bytes.
        len: usize,
    },
    /// A key is empty or too long. Nothing of its batch was done.
    #[error("object {at} of the batch: a key has 1 to {LONGEST_NAME} bytes, not {len}")]
    Key {
        /// The object's index in the batch, from 0.
        at: usize,
        /// The key's length in bytes.
        len: usize,
    },
    /// The meta of an object is too long. Nothing of its batch was done.
    #[error("object {at} of the batch: its meta has {len} bytes, and {LONGEST_META} are the most")]
    Meta {
        /// The object's index in the batch, from 0.
        at: usize,
        /// The meta's length in bytes.
        len: usize,
    },
    /// An object is too large. Nothing of its batch was done.
    #[error("object {at} of the batch: it has {bytes} bytes, and {LARGEST} are the most")]
    TooLarge {
        /// The object's index in the batch, from 0.
        at: usize,
        /// The object's length in bytes.
        bytes: u64,
    },
}
