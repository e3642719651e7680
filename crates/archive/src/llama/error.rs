//! Errors of states of llama.cpp.

use transload_layout::document::Faults;
use transload_memory::{CheckError, MemoryError};
use transload_plan::{BindError, PlanError};
use transload_store::StoreError;

use super::format::{MAGIC, SESSION_MAGIC, SESSION_VERSION};
use crate::ArchiveError;
use crate::objects::ObjectError;

/// Describes why the bytes of a state could not be saved, restored or parsed. Offsets count from the first byte passed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlamaError {
    /// The bytes end too early.
    #[error("the state is cut: {what} at byte {at} takes {needed} bytes, and {left} are left")]
    Cut {
        /// The part that is incomplete.
        what: &'static str,
        /// The part's offset.
        at: usize,
        /// The part's length in bytes.
        needed: u128,
        /// The bytes from that offset on.
        left: usize,
    },
    /// The bytes are not a state of the known version.
    #[error(
        "this is not a state of a version that can be read: it begins with {found:#010x} and not with {MAGIC:#010x}"
    )]
    Magic {
        /// The first number found.
        found: u32,
    },
    /// The bytes are not a session file of the known version.
    #[error(
        "this is no session file of a version that can be read: it begins with {magic:#010x}, version {version}, and not \
         with {SESSION_MAGIC:#010x}, version {SESSION_VERSION}"
    )]
    Session {
        /// The first number found.
        magic: u32,
        /// The version found.
        version: u32,
    },
    /// The state does not hold exactly one stream of cells.
    #[error("the state has {found} streams; that of one sequence has 1")]
    Streams {
        /// The number of streams.
        found: u32,
    },
    /// The sequence of the state has no tokens.
    #[error("the state has no cells")]
    Empty,
    /// The flag for transposed values is neither 0 nor 1.
    #[error("byte {at} says {found} where 1 would be transposed values and 0 others")]
    Transposed {
        /// The flag's value.
        found: u32,
        /// The flag's offset.
        at: usize,
    },
    /// The number of layers is impossible.
    #[error("the state has {found} layers; 1 to {most} are possible")]
    Layers {
        /// The number of layers found.
        found: u32,
        /// The largest possible number.
        most: u64,
    },
    /// The rows of a layer are impossible.
    #[error("the {side} of layer {layer} are {bytes} bytes a cell of type {kind}: {why}")]
    Row {
        /// `keys` or `values`.
        side: &'static str,
        /// The layer, counted from 0.
        layer: usize,
        /// The type, in llama.cpp's numbering.
        kind: i32,
        /// The bytes of a row.
        bytes: u64,
        /// The reason.
        why: &'static str,
    },
    /// Bytes follow the last layer.
    #[error(
        "{bytes} bytes follow the last layer: this is the state of a model with windows or recurrent layers, which is only \
         saved whole, or it is damaged"
    )]
    Rest {
        /// The number of these bytes.
        bytes: usize,
    },
    /// The cells are not those of a single sequence from its first token on.
    #[error(
        "cell {cell} of the state is {found}: only positions 0 to {last}, once each in one sequence, can be saved by rows"
    )]
    Cell {
        /// The cell, counted from 0.
        cell: usize,
        /// A description of the cell.
        found: String,
        /// The last expected position.
        last: usize,
    },
    /// The state does not fit the tokens.
    #[error("{tokens} tokens were given with a state of {cells} cells")]
    Tokens {
        /// The number of tokens passed.
        tokens: usize,
        /// The number of cells in the state.
        cells: usize,
    },
    /// The state has other layers, types or row lengths.
    #[error("the state has other layers, types or row lengths than the context that this was opened for")]
    OtherShape,
    /// Rows could not be saved or restored.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The rest after the last whole token chunk could not be saved or restored.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// The state cannot be described as a deployment.
    #[error("the rows of the state cannot be laid out: {0}")]
    Layout(#[from] Faults),
    /// There is no plan between two layouts of the rows.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The cells do not fit the rows to copy.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Rows are outside of their memory.
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
