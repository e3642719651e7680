//! Finding the longest saved beginning of a prompt, and making a state of it.

use transload_layout::Rank;
use transload_memory::Access;
use transload_plan::{BlockTable, Tables};

use super::LlamaError;
use super::format::{HEAD, LAYER_HEAD, MAGIC};
use super::save::{behind_table, meta};
use super::shape::{RowLayout, Shape};
use super::states::{CHUNK, Kind, ObjectKey, PLACES, Rows, States, names, places};
use crate::objects::Info;
use crate::{ArchiveError, Prompt};

/// A saved beginning of a prompt.
#[derive(Clone, Debug)]
pub struct Found {
    tokens: usize,
    /// By whole token chunks; none where states are kept whole.
    rows: Option<crate::Found>,
    /// What lies behind them, or the whole state.
    object: Option<Object>,
}

#[derive(Clone, Debug)]
struct Object {
    key: ObjectKey,
    info: Info,
}

impl Found {
    /// How many tokens of the prompt the state will be of; never 0.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// One look-up asks for the whole states behind so many prefixes: those of 16,384 tokens, 512 names.
const PREFIXES: usize = 64;

impl States {
    /// Finds the longest saved beginning of a prompt.
    ///
    /// # Errors
    /// If the store fails. What is not there, or cannot be read, is not saved.
    pub fn find(&self, tokens: &[u32]) -> Result<Option<Found>, LlamaError> {
        match &self.kind {
            Kind::Rows(rows) => self.find_rows(rows, tokens),
            Kind::Whole => self.find_whole(tokens),
        }
    }

    fn find_rows(&self, rows: &Rows, tokens: &[u32]) -> Result<Option<Found>, LlamaError> {
        let found = rows.archive.find(&Prompt::new(tokens))?;
        let whole = found.tokens() as usize;
        let keys = places(&self.keys(&tokens[..whole])[whole / CHUNK..]);
        let there = self.objects.has(&names(&keys))?;
        let rests = keys.into_iter().zip(there);
        let rests = rests.filter_map(|(key, info)| {
            let info = info.filter(|info| info.bytes == cells(info) as u64 * rows.shape.cell_bytes())?;
            let pairs = info.meta.chunks_exact(4).zip(&tokens[whole..]);
            let shared = pairs.take_while(|(saved, token)| **saved == token.to_le_bytes());
            Some((shared.count(), Object { key, info }))
        });
        let (shared, rest) = rests.max_by_key(|(shared, _)| *shared).unzip();
        let shared = shared.unwrap_or(0);
        let tokens = whole + shared;
        Ok((tokens > 0).then(|| Found { tokens, rows: Some(found), object: rest.filter(|_| shared > 0) }))
    }

    fn find_whole(&self, tokens: &[u32]) -> Result<Option<Found>, LlamaError> {
        let keys: Vec<_> = places(&self.keys(tokens)).into_iter().enumerate().collect();
        // The longest is what is wanted, and usually the prompt goes on where one ended not long ago.
        for keys in keys.rchunks(PLACES * PREFIXES) {
            let there = self.objects.has(&names(keys.iter().map(|(_, key)| key)))?;
            let found = keys.iter().zip(there);
            let found = found.filter_map(|((place, key), info)| {
                let (info, whole) = (info?, place / PLACES * CHUNK);
                let behind = tokens.get(whole..whole + cells(&info))?;
                (meta(behind) == info.meta && whole + behind.len() > 0).then(|| Found {
                    tokens: whole + behind.len(),
                    rows: None,
                    object: Some(Object { key: *key, info }),
                })
            });
            if let Some(longest) = found.max_by_key(|found| found.tokens) {
                return Ok(Some(longest));
            }
        }
        Ok(None)
    }

    /// Makes the state that was found, for `llama_state_seq_set_data`: cells 0, 1, ... of one sequence, with values as the
    /// context wants them. `None` if a part of it is gone or damaged by now, or was replaced: find again then, since that
    /// was forgotten.
    ///
    /// Memory is taken for the prompt's tokens, and for what was read; never because a manifest says so.
    ///
    /// # Errors
    /// If the store fails.
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
        (object, tokens): (Option<&Object>, usize),
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
        // SAFETY: `state` is not used otherwise before this returns; the archive's threads end, and its clones of the memories go,
        // before its calls return.
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

    /// Reads an object, if it is the one that was found.
    fn read(&self, object: &Object) -> Result<Option<Vec<u8>>, LlamaError> {
        let read = self.objects.read(&object.key)?;
        Ok(read.and_then(|(info, bytes)| (info == object.info).then_some(bytes)))
    }
}

impl Rows {
    /// How rows lie in a state of so many cells for the context that restores.
    fn layout(&self, cells: usize) -> RowLayout {
        // Streams, cells, each cell, how values lie, layers.
        let at = HEAD + 4 + 4 + 12 * cells + 4 + 4;
        RowLayout::in_state(cells, self.transposed, at)
    }
}

impl Shape {
    /// Where the last layer ends.
    fn end(&self, layout: &RowLayout) -> usize {
        let layers = self.rows.len() * LAYER_HEAD;
        layout.at + layers + self.cell_bytes() as usize * layout.cells
    }

    /// Writes everything but the rows of a state.
    fn write_heads(&self, layout: &RowLayout, state: &mut [u8]) {
        let cells = layout.cells as u32;
        let mut head = vec![MAGIC, 0, 1, cells];
        head.extend((0..cells).flat_map(|position| [position, 1, 0]));
        head.extend([u32::from(layout.transposed), self.layers as u32]);
        for (bytes, word) in state[..layout.at].chunks_exact_mut(4).zip(head) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut at = layout.at;
        for (place, rows) in self.rows.iter().enumerate() {
            let element = rows.element().filter(|_| layout.transposed && place >= self.layers);
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

/// How many tokens an object is of, behind its whole token chunks.
fn cells(info: &Info) -> usize {
    info.meta.len() / 4
}
