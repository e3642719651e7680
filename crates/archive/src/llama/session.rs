//! The files of `llama_state_seq_save_file`.

use serde::Serialize;

use super::LlamaError;
use super::format::{SESSION_MAGIC, SESSION_VERSION};
use super::parse::{Reader, State};
use super::shape::Rows;

/// What a session file holds: the tokens of a sequence, and its state without the first eight bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Session {
    /// The tokens, as llama.cpp numbers them.
    pub tokens: Vec<u32>,
    /// How many cells the (first) cache has.
    pub cells: usize,
    /// The lowest and the highest position of a cell.
    pub positions: (i32, i32),
    /// How many layers there are.
    pub layers: usize,
    /// Runs of layers with equal keys, in their order.
    pub keys: Vec<Layers>,
    /// The same of values; none where latents are both.
    pub values: Vec<Layers>,
    /// Whether values are transposed.
    #[serde(rename = "values_transposed")]
    pub transposed: bool,
    /// Bytes behind the first cache: of sliding windows, or of recurrent layers.
    #[serde(rename = "rest_bytes")]
    pub rest: usize,
}

/// Neighbouring layers whose rows are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Layers {
    /// How many layers.
    pub layers: usize,
    /// Their type: `f16`, `q8_0`; `type N` for one without a name here.
    #[serde(rename = "type")]
    pub dtype: String,
    /// Bytes of the row of one cell.
    #[serde(rename = "row_bytes")]
    pub row: u64,
}

impl Session {
    /// Reads a session file.
    ///
    /// # Errors
    /// If it is none, is of another version, or ends before the rows of the last layer do.
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
