//! Parsing of a state, without trusting any length in it.
//!
//! All fields are little-endian, without padding, as llama.cpp writes them:
//!
//! ```text
//! u32 0xaf143cd8, u32 of no meaning, u32 number of streams
//! u32 cells; for each: i32 position, u32 number of sequences, i32 each
//! u32 whether values are transposed, u32 layers
//! keys,   for each layer: i32 type, u64 bytes of a row, a row for each cell
//! values, for each layer: the same; transposed: i32 type, u32 bytes of an element, u32 elements of a row, and for
//!                         each element that of each cell. Models with latents (MLA) have none.
//! ```

use transload_layout::MAX_LAYERS;

use super::LlamaError;
use super::format::MAGIC;
use super::shape::{Rows, Shape};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) position: i32,
    pub(super) sequences: u32,
}

/// The parsed first cache of a state, with the offsets of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) cells: Vec<Cell>,
    pub(super) transposed: bool,
    pub(super) shape: Shape,
    pub(super) layers_at: usize,
    pub(super) end: usize,
}

impl State {
    /// Parses the state of a sequence. All bytes must be used.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, LlamaError> {
        let mut reader = Reader { bytes, at: 0 };
        head(&mut reader)?;
        let state = Self::read(&mut reader)?;
        match bytes.len() - state.end {
            0 => Ok(state),
            bytes => Err(LlamaError::Rest { bytes }),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, LlamaError> {
        streams(reader)?;
        let cells = cells(reader)?;
        let at = reader.at;
        let transposed = match reader.u32("how values lie")? {
            0 => false,
            1 => true,
            found => return Err(LlamaError::Transposed { found, at }),
        };
        let layers = reader.u32("the number of layers")?;
        if !(1..=MAX_LAYERS).contains(&u64::from(layers)) {
            let most = MAX_LAYERS;
            return Err(LlamaError::Layers { found: layers, most });
        }
        let layers = layers as usize;
        let layers_at = reader.at;
        let mut rows = Vec::new();
        for layer in 0..layers {
            rows.push(reader.rows("keys", layer, cells.len(), false)?);
        }
        // Models with latents have no values, and end here.
        if reader.at < reader.bytes.len() {
            let keys_end = reader.at;
            let values = (0..layers).map(|layer| reader.rows("values", layer, cells.len(), transposed));
            match values.collect::<Result<Vec<_>, _>>() {
                Ok(values) => rows.extend(values),
                Err(_) if is_recurrent(&reader.bytes[keys_end..], &cells) => reader.at = keys_end,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { cells, transposed, shape: Shape { layers, rows }, layers_at, end: reader.at })
    }
}

/// Checks the header, which all states share.
pub(super) fn check_head(bytes: &[u8]) -> Result<(), LlamaError> {
    let mut reader = Reader { bytes, at: 0 };
    head(&mut reader)?;
    // This is one stream of cells, or one cell of recurrent state.
    streams(&mut reader)
}

fn head(reader: &mut Reader<'_>) -> Result<(), LlamaError> {
    let found = reader.u32("the magic number")?;
    if found != MAGIC {
        return Err(LlamaError::Magic { found });
    }
    reader.u32("the head").map(drop)
}

fn streams(reader: &mut Reader<'_>) -> Result<(), LlamaError> {
    match reader.u32("the number of streams")? {
        1 => Ok(()),
        found => Err(LlamaError::Streams { found }),
    }
}

fn cells(reader: &mut Reader<'_>) -> Result<Vec<Cell>, LlamaError> {
    let count = reader.u32("the number of cells")?;
    if count == 0 {
        return Err(LlamaError::Empty);
    }
    let mut cells = Vec::new();
    for _ in 0..count {
        let position = reader.u32("the position of a cell")?.cast_signed();
        let sequences = reader.u32("the sequences of a cell")?;
        reader.take("the sequences of a cell", 4 * u128::from(sequences))?;
        cells.push(Cell { position, sequences });
    }
    Ok(cells)
}

/// Tells whether the cache of recurrent layers may begin here: one cell, at the last position, without listed sequences
/// and without transposition. It follows latents directly, where other models have values.
fn is_recurrent(bytes: &[u8], cells: &[Cell]) -> bool {
    let last = cells.iter().map(|cell| cell.position).max();
    let head = [1, last.unwrap_or_default(), 0, 0].map(i32::to_le_bytes);
    bytes.starts_with(head.as_flattened())
}

#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, what: &'static str, needed: u128) -> Result<&'a [u8], LlamaError> {
        let (at, left) = (self.at, self.bytes.len() - self.at);
        if needed > left as u128 {
            return Err(LlamaError::Cut { what, at, needed, left });
        }
        self.at += needed as usize;
        Ok(&self.bytes[at..self.at])
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, LlamaError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn rows(&mut self, side: &'static str, layer: usize, cells: usize, transposed: bool) -> Result<Rows, LlamaError> {
        let kind = self.u32("the type of a layer")?.cast_signed();
        let (low, high) = (self.u32("the rows of a layer")?, self.u32("the rows of a layer")?);
        let rows = match transposed {
            false => Rows { kind, bytes: u64::from(high) << 32 | u64::from(low) },
            true => Rows { kind, bytes: u64::from(low) * u64::from(high) },
        };
        let wrong = match rows.element() {
            _ if rows.bytes == 0 => Some("a row must not be empty"),
            Some(element) if !rows.bytes.is_multiple_of(element) => Some("a row is not a whole number of its elements"),
            Some(element) if transposed && u64::from(low) != element => Some("its elements have another length"),
            None if transposed => Some("quantized values cannot be transposed"),
            _ => None,
        };
        if let Some(why) = wrong {
            return Err(LlamaError::Row { side, layer, kind, bytes: rows.bytes, why });
        }
        self.take("the rows of a layer", u128::from(rows.bytes) * cells as u128)?;
        Ok(rows)
    }
}
