//! The search for the longest saved beginning of a prompt, and its restoration as a state.

use transload_layout::Rank;
use transload_memory::Access;
use transload_plan::{BlockTable, Tables};

use super::LlamaError;
use super::format::{HEAD, LAYER_HEAD, MAGIC};
use super::save::{behind_table, meta};
use super::shape::{RowLayout, Shape};
use super::states::{CHUNK, Kind, ObjectKey, Rows, SLOTS, States, names, slots};
use crate::objects::Info;
use crate::{ArchiveError, Prompt};

/// A saved beginning of a prompt.
#[derive(Clone, Debug)]
pub struct Found {
    tokens: usize,
    /// The rows of whole token chunks; none if states are kept whole.
    rows: Option<crate::Found>,
    /// The rest after them, or the whole state.
    object: Option<StoredObject>,
}

#[derive(Clone, Debug)]
struct StoredObject {
    key: ObjectKey,
    info: Info,
}

impl Found {
    /// Returns how many tokens of the prompt the state will have, at least 1.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// The number of prefixes whose states one look-up searches for: 16,384 tokens, 512 names.
const PREFIXES: usize = 64;

impl States {
    /// Finds the longest saved beginning of a prompt.
    ///
    /// # Errors
    /// Returns an error if the store fails. A missing or unreadable state counts as not saved.
    pub fn find(&self, tokens: &[u32]) -> Result<Option<Found>, LlamaError> {
        match &self.kind {
            Kind::Rows(rows) => self.find_rows(rows, tokens),
            Kind::Whole => self.find_whole(tokens),
        }
    }

    fn find_rows(&self, rows: &Rows, tokens: &[u32]) -> Result<Option<Found>, LlamaError> {
        let found = rows.archive.find(&Prompt::new(tokens))?;
        let whole = found.tokens() as usize;
        let keys = slots(&self.keys(&tokens[..whole])[whole / CHUNK..]);
        let there = self.objects.has(&names(&keys))?;
        let rests = keys.into_iter().zip(there);
        let rests = rests.filter_map(|(key, info)| {
            let info = info.filter(|info| info.bytes == cells(info) as u64 * rows.shape.cell_bytes())?;
            let pairs = info.meta.chunks_exact(4).zip(&tokens[whole..]);
            let shared = pairs.take_while(|(saved, token)| **saved == token.to_le_bytes());
            Some((shared.count(), StoredObject { key, info }))
        });
        let (shared, rest) = rests.max_by_key(|(shared, _)| *shared).unzip();
        let shared = shared.unwrap_or(0);
        let tokens = whole + shared;
        Ok((tokens > 0).then(|| Found { tokens, rows: Some(found), object: rest.filter(|_| shared > 0) }))
    }

    fn find_whole(&self, tokens: &[u32]) -> Result<Option<Found>, LlamaError> {
        let keys: Vec<_> = slots(&self.keys(tokens)).into_iter().enumerate().collect();
        // Search from the longest prefix: usually a prompt continues one that was saved recently.
        for keys in keys.rchunks(SLOTS * PREFIXES) {
            let there = self.objects.has(&names(keys.iter().map(|(_, key)| key)))?;
            let found = keys.iter().zip(there);
            let found = found.filter_map(|((slot, key), info)| {
                let (info, whole) = (info?, slot / SLOTS * CHUNK);
                let behind = tokens.get(whole..whole + cells(&info))?;
                (meta(behind) == info.meta && whole + behind.len() > 0).then(|| Found {
                    tokens: whole + behind.len(),
                    rows: None,
                    object: Some(StoredObject { key: *key, info }),
                })
            });
            if let Some(longest) = found.max_by_key(|found| found.tokens) {
                return Ok(Some(longest));
            }
        }
        Ok(None)
    }

    /// Builds the state for `llama_state_seq_set_data`: cells 0, 1, ... of one sequence, with values laid out as the
    /// context needs them. Returns `None` if a part of it was removed, replaced or found damaged meanwhile. That part
    /// is forgotten, so search again.
    ///
    /// Memory is allocated for the prompt's tokens and for what was read, but never for a length that a manifest
    /// claims.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub fn restore(&self, found: &Found) -> Result<Option<Vec<u8>>, LlamaError> {
        match (&self.kind, &found.rows, &found.object) {
            (Kind::Rows(rows), Some(chunks), object) => {
                self.restore_rows(rows, chunks, (object.as_ref(), found.tokens))
            }
            (_, _, Some(object)) => self.read(object),
            _ => Ok(None),
        }
    }

    fn restore_rows(
        &self,
        rows: &Rows,
        chunks: &crate::Found,
        (object, tokens): (Option<&StoredObject>, usize),
    ) -> Result<Option<Vec<u8>>, LlamaError> {
        let mut rest = Vec::new();
        if let Some(object) = object {
            let Some(read) = self.read(object)? else {
                return Ok(None);
            };
            rest = read;
        }
        let layout = rows.layout(tokens);
        let mut state = vec![0; rows.shape.end(&layout)];
        rows.shape.write_heads(&layout, &mut state);
        let deployment = rows.shape.deployment(&layout)?;
        let rank = rows.archive.rank(&deployment, Rank(0))?;
        let whole = chunks.tokens() as usize;
        let memory = (state.as_mut_ptr(), state.len());
        // SAFETY: `state` is not used otherwise before this returns. The archive's threads and its clones of the
        // memories end before its calls return.
        let restored = unsafe {
            rows.shape.with_memories(&layout, memory, Access::ReadWrite, |memories| {
                let tables = Tables(vec![BlockTable::Identity; memories.len()]);
                rank.restore(chunks, 0, memories, &tables)?;
                let Some(object) = object else { return Ok(()) };
                let dense = RowLayout::dense(cells(&object.info));
                let own = (rest.as_mut_ptr(), rest.len());
                // SAFETY: `rest` is not used otherwise before this returns, and the copy ends with it.
                rows.shape.with_memories(&dense, own, Access::Read, |from| {
                    let from = (from, &dense, &behind_table(whole, dense.cells));
                    let into = (memories, &layout, &BlockTable::Identity);
                    rows.shape.copy(whole..tokens, from, into)
                })
            })
        };
        match restored {
            Err(LlamaError::Archive(ArchiveError::Missing { .. } | ArchiveError::Damaged { .. })) => Ok(None),
            other => other.map(|()| Some(state)),
        }
    }

    /// Reads an object. Returns `None` unless it is still the one that was found.
    fn read(&self, object: &StoredObject) -> Result<Option<Vec<u8>>, LlamaError> {
        let read = self.objects.read(&object.key)?;
        Ok(read.and_then(|(info, bytes)| (info == object.info).then_some(bytes)))
    }
}

impl Rows {
    fn layout(&self, cells: usize) -> RowLayout {
        // Streams, cells, each cell, transposition, layers.
        let at = HEAD + 4 + 4 + 12 * cells + 4 + 4;
        RowLayout::in_state(cells, self.transposed, at)
    }
}

impl Shape {
    fn end(&self, layout: &RowLayout) -> usize {
        let layers = self.rows.len() * LAYER_HEAD;
        layout.at + layers + self.cell_bytes() as usize * layout.cells
    }

    fn write_heads(&self, layout: &RowLayout, state: &mut [u8]) {
        let cells = layout.cells as u32;
        let mut head = vec![MAGIC, 0, 1, cells];
        head.extend((0..cells).flat_map(|position| [position, 1, 0]));
        head.extend([u32::from(layout.transposed), self.layers as u32]);
        for (bytes, word) in state[..layout.at].chunks_exact_mut(4).zip(head) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut at = layout.at;
        for (slot, rows) in self.rows.iter().enumerate() {
            let element = rows.element().filter(|_| layout.transposed && slot >= self.layers);
            let row = match element {
                Some(element) => element | (rows.bytes / element) << 32,
                None => rows.bytes,
            };
            state[at..at + 4].copy_from_slice(&rows.kind.to_le_bytes());
            state[at + 4..at + LAYER_HEAD].copy_from_slice(&row.to_le_bytes());
            at += LAYER_HEAD + rows.bytes as usize * layout.cells;
        }
    }
}

fn cells(info: &Info) -> usize {
    info.meta.len() / 4
}
