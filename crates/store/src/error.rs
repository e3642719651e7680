//! Errors of stores.

use std::error::Error;
use std::io;

use crate::hash::ChunkHash;
use crate::uri::UriError;

/// Describes why an operation on a store failed. A value that does not exist is `None`, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A chunk's key has a length that no store accepts.
    #[error("a chunk's hash has 1 to 64 bytes, not {len}")]
    HashLength {
        /// The key's length in bytes.
        len: usize,
    },
    /// The text of a hash is not hex.
    #[error("`{text}` is not a hash: write its bytes as hex digits, two each")]
    HashText {
        /// The text that is not a hash.
        text: String,
    },
    /// A text cannot be a manifest's name.
    #[error("`{name}` cannot name a manifest: {why}")]
    Name {
        /// The name, or its beginning.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The URI does not name a store.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// The store does not exist, and the call was not allowed to create it.
    #[error("there is no store at {place}, nor above it")]
    NotThere {
        /// The place that was searched.
        place: String,
    },
    /// The value is longer than this store takes.
    #[error("{bytes} bytes are too many for one value of this store; {most} are the most")]
    TooLarge {
        /// The value's length in bytes.
        bytes: u64,
        /// The longest value in bytes.
        most: u64,
    },
    /// The stored value is not the one that was put: its checksum is wrong, or it cannot be parsed.
    #[error("{what} is damaged: {how}")]
    Damaged {
        /// The chunk, manifest or file that is damaged.
        what: String,
        /// The expected and the found content.
        how: String,
    },
    /// The store's size cap leaves no room, even after everything evictable was evicted.
    #[error("the store is full: {needed} bytes more would exceed its cap of {cap} bytes")]
    Full {
        /// The number of bytes needed.
        needed: u64,
        /// The cap in bytes.
        cap: u64,
    },
    /// Another process or thread did not release a lock in time. What readers see has not changed. The chunks that were
    /// put for the unpublished manifest may be lost with it: put both again.
    #[error("{lock} was still held after {waited:?}: the process that holds it is still busy or was stopped")]
    Locked {
        /// The lock's file, or its name inside a process.
        lock: String,
        /// The time waited for the lock.
        waited: std::time::Duration,
    },
    /// A chunk that existed when it was put again was collected before the manifest was put. Put the chunks of this
    /// manifest again, then the manifest.
    #[error("chunk {hash} was collected before the manifest that needs it: put both again")]
    Collected {
        /// The chunk that was collected.
        hash: ChunkHash,
    },
    /// An earlier failure left this handle unable to say what is stored. Open the store again.
    #[error("this handle failed earlier ({why}); open the store again")]
    Poisoned {
        /// The earlier failure.
        why: String,
    },
    /// The store does not support this operation.
    #[error("{what} is not possible here: {why}")]
    Unsupported {
        /// The operation that was requested.
        what: &'static str,
        /// Why this store does not support it.
        why: String,
    },
    /// The operating system reported an error.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed and its object: `write packs/3f/9a.pack`.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A remote backend, or a library of another vendor, reported an error.
    #[error("{action} failed: {source}")]
    Remote {
        /// The action that failed and its object.
        action: String,
        /// The error that the other side reported.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    /// Returns a function that makes an [`Io`](Self::Io) error, for `map_err`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// Returns a [`Remote`](Self::Remote) error.
    pub fn remote(action: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Remote { action: action.into(), source: source.into() }
    }
}
