//! Errors between an engine's blocks and a store.

#[cfg(feature = "cuda")]
use transload_cuda::DeviceError;
use transload_layout::document::Faults;
use transload_memory::{AccessError, CheckError, MemoryError};
use transload_plan::{BindError, BridgeError, PlanError};
use transload_store::{ChunkHash, StoreError};

use crate::manifest::Unreadable;

/// Describes why blocks could not be saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The deployment does not have the archive's cache.
    #[error("the deployment does not hold what this archive keeps: {0}")]
    OtherCache(#[from] BridgeError),
    /// A group of the archive is not in the deployment.
    #[error("the deployment has no group \"{group}\", which this archive keeps")]
    NoGroup {
        /// The group's name.
        group: String,
    },
    /// The deployment has no such rank.
    #[error("there is no rank {rank}: the deployment's ranks are 0 to {last}")]
    NoSuchRank {
        /// The requested rank.
        rank: u32,
        /// The highest rank.
        last: u32,
    },
    /// There is not exactly one memory or block table for each group of the deployment's document.
    #[error("{given} {what} for the {groups} groups of the deployment: give one for each")]
    Count {
        /// The kind of the arguments: memories or block tables.
        what: &'static str,
        /// The number of arguments.
        given: usize,
        /// The number of groups.
        groups: usize,
    },
    /// States of this many tokens do not divide a token chunk.
    #[error("group \"{group}\": states of {tokens} tokens do not divide a token chunk of 256")]
    TokensPerState {
        /// The group's name.
        group: String,
        /// The tokens of one state.
        tokens: u64,
    },
    /// Recurrent and other specs share a page.
    #[error("group \"{group}\" holds recurrent state and other caches in one page; give them a group each")]
    MixedGroup {
        /// The group's name.
        group: String,
    },
    /// The group cannot be divided into pieces.
    #[error("group \"{group}\" cannot be cut into pieces: {why}")]
    Layout {
        /// The group's name.
        group: String,
        /// The reason.
        why: &'static str,
    },
    /// The archive's own layout of a group is not valid.
    #[error("the archive's layout of the deployment cannot be placed: {0}")]
    Document(#[from] Faults),
    /// There is no plan between the engine and the archive.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A block table does not fit the tokens to move.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The engine's memory does not have the size that its deployment says.
    #[error(transparent)]
    Copy(#[from] CheckError),
    /// Memory of a GPU could not be accessed, or awaited work of the GPU failed. Usually the device is lost.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Device(DeviceError),
    /// The GPU did not reach a mark in time.
    #[cfg(feature = "cuda")]
    #[error("the work that comes before the blocks are touched was not done within {within:?}")]
    NoMark {
        /// The time waited for the mark.
        within: std::time::Duration,
    },
    /// There is not enough memory for a token chunk.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Bytes of a memory could not be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A save asks for more tokens than the prompt has, or says that its state is beyond the prompt.
    #[error("{what} is {tokens}, but the prompt has {prompt} tokens")]
    BehindPrompt {
        /// The name of the value.
        what: &'static str,
        /// Its value.
        tokens: u64,
        /// Length of the prompt.
        prompt: u64,
    },
    /// The ranks' parts are incomplete together. Nothing is published.
    #[error(
        "the parts do not hold all of tokens {from} to {to} of group \"{group}\": unit {unit} of {what} lacks \
             layer {layer}, or has it twice; give the part of every rank of one save"
    )]
    Incomplete {
        /// The group's name.
        group: String,
        /// The segment's first token.
        from: u64,
        /// One past the segment's last token.
        to: u64,
        /// Components of the class.
        what: String,
        /// The unit.
        unit: u64,
        /// The first layer that is missing or present twice, as an index into the group's layers.
        layer: u32,
    },
    /// A value from another process (a part, a list of what is missing, a found prefix) is not of this archive.
    #[error("{what} cannot be used: {why}")]
    Unusable {
        /// The kind of the value.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Before it was published, a collection removed what a rank had saved. Nothing is published.
    #[error(
        "a collection removed what a rank has saved before it was published: the save took longer than the \
             collection's grace period; save once more"
    )]
    Expired,
    /// The permit for the engine's blocks was revoked.
    #[error("the permit for the engine's blocks was revoked, so the operation stopped")]
    Revoked,
    /// Chunks that wait to be saved have used up their memory.
    #[error("what waits to be saved has all of its {bytes} bytes of memory")]
    StagingFull {
        /// The limit in bytes.
        bytes: u64,
    },
    /// A piece of a saved prefix is missing: the store has lost or evicted it.
    #[error("chunk {hash} of the saved prefix is gone; {usable} tokens before it may still be there")]
    Missing {
        /// The missing piece.
        hash: ChunkHash,
        /// The tokens before the token chunk of that piece.
        usable: u64,
    },
    /// A piece of a saved prefix differs from what was saved.
    #[error("chunk {hash} of the saved prefix is damaged; {usable} tokens before it may be whole")]
    Damaged {
        /// The damaged piece.
        hash: ChunkHash,
        /// The tokens before the token chunk of that piece.
        usable: u64,
    },
}

#[cfg(feature = "cuda")]
impl From<DeviceError> for ArchiveError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Check(error) => Self::Copy(error),
            error => Self::Device(error),
        }
    }
}

impl ArchiveError {
    pub(crate) fn unusable(what: &'static str, why: Unreadable) -> Self {
        Self::Unusable { what, why: why.0 }
    }

    pub(crate) fn layout(group: &str, why: &'static str) -> Self {
        Self::Layout { group: group.to_owned(), why }
    }
}
