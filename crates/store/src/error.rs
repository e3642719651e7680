//! What can go wrong in a store.

use std::error::Error;
use std::io;

use crate::hash::ChunkHash;
use crate::uri::UriError;

/// Why an operation on a store failed. What is merely not there is `None`, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key of a chunk has a length that no store takes.
    #[error("a chunk's hash has 1 to 64 bytes, not {len}")]
    HashLength {
        /// Its length in bytes.
        len: usize,
    },
    /// The text of a hash is not hex.
    #[error("`{text}` is not a hash: write its bytes as hex digits, two each")]
    HashText {
        /// What was given.
        text: String,
    },
    /// The name of a manifest cannot be one.
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
    /// A store was to be opened that is not there, without making one.
    #[error("there is no store at {place}, nor above it")]
    NotThere {
        /// Where it was looked for.
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
    /// What is stored is not what was put: it fails its checksum or cannot be read as what it should be.
    #[error("{what} is damaged: {how}")]
    Damaged {
        /// Which chunk, manifest or file.
        what: String,
        /// What was expected and what was found.
        how: String,
    },
    /// The store's size cap leaves no room, also after everything that may go was evicted.
    #[error("the store is full: {needed} bytes more would exceed its cap of {cap} bytes")]
    Full {
        /// How many bytes were needed.
        needed: u64,
        /// The cap in bytes.
        cap: u64,
    },
    /// Somebody else did not give a lock back in time. What others see has not changed. Chunks that were put for a
    /// manifest that could not be published may be lost with it: put both again.
    #[error("{lock} was not given back within {waited:?}: whoever holds it works for that long, or was stopped")]
    Locked {
        /// The lock's file, or what stands for it inside a process.
        lock: String,
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// A chunk that was there when it was put again has been collected before the manifest came. Put the
    /// chunks of this manifest again, then the manifest.
    #[error("chunk {hash} was collected before the manifest that needs it: put both again")]
    Collected {
        /// Which chunk.
        hash: ChunkHash,
    },
    /// An earlier failure left this handle unable to say what is stored. Open the store again.
    #[error("this handle failed earlier ({why}); open the store again")]
    Poisoned {
        /// What failed then.
        why: String,
    },
    /// The store cannot do this.
    #[error("{what} is not possible here: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why this store cannot do it.
        why: String,
    },
    /// The system under the store refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done, to what: `write packs/3f/9a.pack`.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// A backend behind a network, or somebody else's library, refused.
    #[error("{action} failed: {source}")]
    Remote {
        /// What was being done, to what.
        action: String,
        /// What the other side said.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    /// An [`Io`](Self::Io) error, for `map_err`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// A [`Remote`](Self::Remote) error.
    pub fn remote(action: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Remote { action: action.into(), source: source.into() }
    }
}
