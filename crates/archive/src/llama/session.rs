//! The files that `llama_state_seq_save_file` writes.

use serde::Serialize;

use super::LlamaError;
use super::format::{SESSION_MAGIC, SESSION_VERSION};
use super::parse::{Reader, State};
use super::shape::Rows;

/// A session file: the tokens of a sequence, and its state without the first eight bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Session {
    /// The tokens, in llama.cpp's numbering.
    pub tokens: Vec<u32>,
    /// The number of cells in the (first) cache.
    pub cells: usize,
    /// The lowest and the highest position of the cells.
    pub positions: (i32, i32),
    /// The number of layers.
    pub layers: usize,
    /// Runs of layers with equal keys, in order.
    pub keys: Vec<Layers>,
    /// Runs of layers with equal values, in order; empty if latents are both.
    pub values: Vec<Layers>,
    /// Whether values are transposed.
    #[serde(rename = "values_transposed")]
    pub transposed: bool,
    /// The bytes after the first cache: those of sliding windows or of recurrent layers.
    #[serde(rename = "rest_bytes")]
    pub rest: usize,
}

/// Consecutive layers with equal rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Layers {
    /// The number of layers.
    pub layers: usize,
    /// The type: `f16`, `q8_0`; `type N` if it has no name here.
    #[serde(rename = "type")]
    pub dtype: String,
    /// The bytes of one cell's row.
    #[serde(rename = "row_bytes")]
    pub row: u64,
}

impl Session {
    /// Parses a session file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a session file of the known version, or end before the last layer's rows
    /// do.
    pub fn read(file: &[u8]) -> Result<Self, LlamaError> {
        let mut reader = Reader { bytes: file, at: 0 };
        let magic = reader.u32("the magic number")?;
        let version = reader.u32("the version")?;
        if (magic, version) != (SESSION_MAGIC, SESSION_VERSION) {
            return Err(LlamaError::Session { magic, version });
        }
        let count = reader.u32("the number of tokens")?;
        let tokens = reader.take("the tokens", 4 * u128::from(count))?;
        let tokens = tokens.chunks_exact(4);
        let tokens = tokens.map(|token| u32::from_le_bytes(token.try_into().expect("four bytes")));
        let state = State::read(&mut reader)?;
        let positions = state.cells.iter().map(|cell| cell.position);
        let positions = positions.clone().min().zip(positions.max());
        let (keys, values) = state.shape.rows.split_at(state.shape.layers);
        Ok(Self {
            tokens: tokens.collect(),
            cells: state.cells.len(),
            positions: positions.expect("no state is read without cells"),
            layers: state.shape.layers,
            keys: runs(keys),
            values: runs(values),
            transposed: state.transposed,
            rest: file.len() - state.end,
        })
    }
}

fn runs(rows: &[Rows]) -> Vec<Layers> {
    let runs = rows.chunk_by(|a, b| a == b).map(|run| Layers {
        layers: run.len(),
        dtype: run[0].type_name(),
        row: run[0].bytes,
    });
    runs.collect()
}
