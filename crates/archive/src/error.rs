//! What can go wrong between an engine's blocks and a store.

#[cfg(feature = "cuda")]
use transload_cuda::DeviceError;
use transload_layout::document::Faults;
use transload_memory::{AccessError, CheckError, MemoryError};
use transload_plan::{BindError, BridgeError, PlanError};
use transload_store::{ChunkHash, StoreError};

use crate::manifest::Unreadable;

/// Why blocks could not be saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The deployment does not hold the cache that the archive is of.
    #[error("the deployment does not hold what this archive keeps: {0}")]
    OtherCache(#[from] BridgeError),
    /// A group of the archive is not in the deployment.
    #[error("the deployment has no group \"{group}\", which this archive keeps")]
    NoGroup {
        /// The group's name.
        group: String,
    },
    /// A rank that the deployment does not have.
    #[error("there is no rank {rank}: the deployment's ranks are 0 to {last}")]
    NoSuchRank {
        /// The rank asked for.
        rank: u32,
        /// The highest there is.
        last: u32,
    },
    /// Not one memory or block table for each group of the deployment's document.
    #[error("{given} {what} for the {groups} groups of the deployment: give one for each")]
    Count {
        /// Memories or block tables.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many groups there are.
        groups: usize,
    },
    /// States of so many tokens do not go into a token chunk.
    #[error("group \"{group}\": states of {tokens} tokens do not divide a token chunk of 256")]
    TokensPerState {
        /// The group.
        group: String,
        /// Tokens of one state.
        tokens: u64,
    },
    /// Recurrent and other specs share a page.
    #[error("group \"{group}\" holds recurrent state and other caches in one page; give them a group each")]
    MixedGroup {
        /// The group.
        group: String,
    },
    /// The group cannot be laid out as pieces.
    #[error("group \"{group}\" cannot be cut into pieces: {why}")]
    Layout {
        /// The group.
        group: String,
        /// What stands in the way.
        why: &'static str,
    },
    /// The archive's own layout of a group cannot be placed.
    #[error("the archive's layout of the deployment cannot be placed: {0}")]
    Document(#[from] Faults),
    /// There is no plan between engine and archive.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A block table does not suit the tokens to move.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// An engine's memory is not as large as its deployment says.
    #[error(transparent)]
    Copy(#[from] CheckError),
    /// Memory of a GPU could not be read or written, or work of the GPU that was to be awaited failed: mostly since the device is lost.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Device(DeviceError),
    /// The GPU did not come to a mark.
    #[cfg(feature = "cuda")]
    #[error("the work that comes before the blocks are touched was not done within {within:?}")]
    NoMark {
        /// How long it was waited for.
        within: std::time::Duration,
    },
    /// There is no memory for a token chunk.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Bytes of a memory could not be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// More tokens are to be saved than the prompt has, or the state is said to be behind them.
    #[error("{what} is {tokens}, but the prompt has {prompt} tokens")]
    BehindPrompt {
        /// What was said.
        what: &'static str,
        /// Its value.
        tokens: u64,
        /// Length of the prompt.
        prompt: u64,
    },
    /// The parts of the ranks do not make a whole: publish nothing.
    #[error(
        "the parts do not hold all of tokens {from} to {to} of group \"{group}\": unit {unit} of {what} lacks \
             layer {layer}, or has it twice; give the part of every rank of one save"
    )]
    Incomplete {
        /// The group.
        group: String,
        /// First token of the segment.
        from: u64,
        /// One past its last token.
        to: u64,
        /// Components of the class.
        what: String,
        /// The unit.
        unit: u64,
        /// Index of the first layer that is missing or there twice, in the group's layers.
        layer: u32,
    },
    /// Something that came from elsewhere (a part, a list of what is missing, a found prefix) is not of this
    /// archive.
    #[error("{what} cannot be used: {why}")]
    Unusable {
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What a rank has saved was collected before it was published. Nothing is published.
    #[error(
        "a collection removed what a rank has saved before it was published: the save took longer than the \
             collection's grace period; save once more"
    )]
    Expired,
    /// The engine's blocks may not be touched any more.
    #[error("the blocks are the engine's again: this was given up")]
    Revoked,
    /// What waits for the store has all the memory that it may have.
    #[error("what waits to be saved has all of its {bytes} bytes of memory")]
    StagingFull {
        /// How much that is.
        bytes: u64,
    },
    /// A piece of a saved prefix is gone: its store has lost or evicted it.
    #[error("chunk {hash} of the saved prefix is gone; {usable} tokens before it may still be there")]
    Missing {
        /// The piece.
        hash: ChunkHash,
        /// Tokens before the token chunk that lacks it.
        usable: u64,
    },
    /// A piece of a saved prefix is not what was saved.
    #[error("chunk {hash} of the saved prefix is damaged; {usable} tokens before it may be whole")]
    Damaged {
        /// The piece.
        hash: ChunkHash,
        /// Tokens before the token chunk that has it.
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
