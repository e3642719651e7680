//! What can go wrong with states of llama.cpp.

use transload_layout::document::Faults;
use transload_memory::{CheckError, MemoryError};
use transload_plan::{BindError, PlanError};
use transload_store::StoreError;

use super::format::{MAGIC, SESSION_MAGIC, SESSION_VERSION};
use crate::ArchiveError;
use crate::objects::ObjectError;

/// Why the bytes of a state could not be saved, restored or read. Offsets count from the first byte that was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlamaError {
    /// The bytes end inside something.
    #[error("the state is cut: {what} at byte {at} takes {needed} bytes, and {left} are left")]
    Cut {
        /// What they end inside of.
        what: &'static str,
        /// Where it begins.
        at: usize,
        /// How long it says it is, in bytes.
        needed: u128,
        /// Bytes from there on.
        left: usize,
    },
    /// It is no state, or one of another version.
    #[error("this is no state of a version that can be read: it begins with {found:#010x} and not with {MAGIC:#010x}")]
    Magic {
        /// What it begins with.
        found: u32,
    },
    /// It is no session file, or one of another version.
    #[error(
        "this is no session file of a version that can be read: it begins with {magic:#010x}, version {version}, and not \
         with {SESSION_MAGIC:#010x}, version {SESSION_VERSION}"
    )]
    Session {
        /// What it begins with.
        magic: u32,
        /// The number that follows.
        version: u32,
    },
    /// The state does not hold exactly one stream of cells.
    #[error("the state has {found} streams; that of one sequence has 1")]
    Streams {
        /// How many it has.
        found: u32,
    },
    /// It is the state of a sequence without tokens.
    #[error("the state has no cells")]
    Empty,
    /// Whether values are transposed is neither yes nor no.
    #[error("byte {at} says {found} where 1 would be transposed values and 0 others")]
    Transposed {
        /// What it says.
        found: u32,
        /// Where.
        at: usize,
    },
    /// No model has so many layers, or none.
    #[error("the state has {found} layers; 1 to {most} are possible")]
    Layers {
        /// How many it says.
        found: u32,
        /// The most there can be.
        most: u64,
    },
    /// The rows of a layer cannot be.
    #[error("the {side} of layer {layer} are {bytes} bytes a cell of type {kind}: {why}")]
    Row {
        /// `keys` or `values`.
        side: &'static str,
        /// The layer, counted from 0.
        layer: usize,
        /// The type, as llama.cpp numbers them.
        kind: i32,
        /// Bytes of a row.
        bytes: u64,
        /// What is wrong with that.
        why: &'static str,
    },
    /// Something follows the last layer.
    #[error(
        "{bytes} bytes follow the last layer: this is the state of a model with windows or recurrent layers, which is only \
         saved whole, or it is damaged"
    )]
    Rest {
        /// How many.
        bytes: usize,
    },
    /// The cells are not those of one sequence from its first token on.
    #[error(
        "cell {cell} of the state is {found}: only positions 0 to {last}, once each in one sequence, can be saved by rows"
    )]
    Cell {
        /// The cell, counted from 0.
        cell: usize,
        /// What it is.
        found: String,
        /// The last position there should be.
        last: usize,
    },
    /// The state is of other tokens.
    #[error("{tokens} tokens were given with a state of {cells} cells")]
    Tokens {
        /// How many tokens were given.
        tokens: usize,
        /// How many cells the state has.
        cells: usize,
    },
    /// The state has other layers, types or row lengths.
    #[error("the state has other layers, types or row lengths than the context that this was opened for")]
    OtherShape,
    /// Rows could not be saved or restored.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// What lies behind the last whole token chunk could not be saved or restored.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// The state cannot be described as a deployment.
    #[error("the rows of the state cannot be laid out: {0}")]
    Layout(#[from] Faults),
    /// There is no plan between two layouts of the rows.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Cells do not suit the rows to copy.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Rows are not where they should be.
    #[error(transparent)]
    Copy(#[from] CheckError),
    /// The state does not fit in memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl From<StoreError> for LlamaError {
    fn from(error: StoreError) -> Self {
        Self::Archive(error.into())
    }
}
