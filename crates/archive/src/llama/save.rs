//! Saving a state.

use transload_layout::Rank;
use transload_memory::Access;
use transload_plan::{BlockTable, Tables};
use transload_store::Put;

use super::LlamaError;
use super::parse::{State, check_head};
use super::shape::RowLayout;
use super::states::{CHUNK, Kind, ObjectKey, Rows, SLOTS, States, names, slots};
use crate::objects::{Info, Source};
use crate::{Prompt, SaveRequest};

/// The result of [`States::save`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Bytes of the state that the store did not have.
    pub bytes: u64,
}

impl States {
    /// Saves the state of a sequence of these tokens. Parts that are saved already are not written again.
    ///
    /// # Errors
    /// Returns an error if the state cannot be parsed or the store fails. States that are saved by rows must also have
    /// these tokens at positions 0, 1, ..., once each in one sequence, and the layers of the sample.
    pub fn save(&self, tokens: &[u32], state: &[u8]) -> Result<Saved, LlamaError> {
        self.save_turn(0, tokens, state)
    }

    /// Saves like [`save`](Self::save), but does not replace the state of the first `prompt` tokens. Otherwise a state
    /// that is kept whole replaces the one that it continues. The next turn of a chat may begin with this turn's prompt
    /// and not with its answer.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn save_turn(&self, prompt: usize, tokens: &[u32], state: &[u8]) -> Result<Saved, LlamaError> {
        match &self.kind {
            Kind::Rows(rows) => self.save_rows(rows, tokens, state),
            Kind::Whole => {
                check_head(state)?;
                let bytes = match self.slot(prompt, tokens)? {
                    Some(slot) => self.put(&slot, state)?,
                    None => 0,
                };
                Ok(Saved { bytes })
            }
        }
    }

    fn save_rows(&self, rows: &Rows, tokens: &[u32], bytes: &[u8]) -> Result<Saved, LlamaError> {
        let state = State::parse(bytes)?;
        if state.shape != rows.shape {
            return Err(LlamaError::OtherShape);
        }
        let cells = state.cells_by_position(tokens.len())?;
        let layout = RowLayout::in_state(tokens.len(), state.transposed, state.layers_at);
        let memory = (bytes.as_ptr().cast_mut(), bytes.len());
        let whole = tokens.len() / CHUNK * CHUNK;
        let after_chunks = tokens.len() - whole;
        let slot = match after_chunks {
            0 => None,
            _ => self.slot(0, tokens)?,
        };
        let mut rest = Vec::new();
        let mut saved = Saved::default();
        // SAFETY: `bytes` is borrowed until the end and only read. The archive's threads and its clones of the memories
        // end before its calls return.
        unsafe {
            rows.shape.with_memories(&layout, memory, Access::Read, |memories| {
                let prompt = Prompt::new(tokens);
                let missing = rows.archive.missing(&prompt, &SaveRequest::tokens(whole as u64))?;
                if !missing.is_empty() {
                    let deployment = rows.shape.deployment(&layout)?;
                    let tables = Tables(vec![cells.clone(); memories.len()]);
                    let rank = rows.archive.rank(&deployment, Rank(0))?;
                    let part = rank.save(&missing, memories, &tables)?;
                    rows.archive.publish(&missing, std::slice::from_ref(&part))?;
                    saved.bytes += part.written;
                }
                if slot.is_none() {
                    return Ok(());
                }
                rest.resize(after_chunks * rows.shape.cell_bytes() as usize, 0);
                let dense = RowLayout::dense(after_chunks);
                let own = (rest.as_mut_ptr(), rest.len());
                // SAFETY: `rest` is not used otherwise before this returns, and the copy ends with it.
                rows.shape.with_memories(&dense, own, Access::ReadWrite, |into| {
                    let from = (memories, &layout, &cells);
                    let into = (into, &dense, &behind_table(whole, after_chunks));
                    rows.shape.copy(whole..tokens.len(), from, into)
                })
            })?;
        }
        if let Some(slot) = slot {
            saved.bytes += self.put(&slot, &rest)?;
        }
        Ok(saved)
    }

    /// Finds a slot for the rest or the whole state of a sequence, except that of its first `prompt` tokens. Returns
    /// `None` if it is saved already.
    fn slot(&self, prompt: usize, tokens: &[u32]) -> Result<Option<Slot>, LlamaError> {
        let chunks = tokens.len() / CHUNK;
        let meta = meta(&tokens[chunks * CHUNK..]);
        let keys = slots(&self.keys(tokens)[chunks..]);
        let there = self.objects.has(&names(&keys))?;
        // A rest also serves all prefixes of its tokens. A whole state does not.
        let has_more = |info: &Info| info.meta.starts_with(&meta);
        if matches!(self.kind, Kind::Rows(_)) && there.iter().flatten().any(has_more) {
            return Ok(None);
        }
        let prompt = tokens.get(chunks * CHUNK..prompt).map(self::meta);
        let key = keys[slot(&there, &meta, prompt.as_deref())];
        Ok(Some(Slot { key, meta }))
    }

    /// Puts a rest or a whole state into its slot. Returns how many bytes the store did not have.
    fn put(&self, Slot { key, meta }: &Slot, value: &[u8]) -> Result<u64, LlamaError> {
        let parts = &[value.into()];
        let put = self.objects.put(&[Source { key, meta, parts }])?;
        Ok(match put[0] {
            Put::Stored => value.len() as u64,
            _ => 0,
        })
    }
}

struct Slot {
    key: ObjectKey,
    meta: Vec<u8>,
}

/// Chooses a slot for these tokens: that of the tokens they continue, or else an empty one, or else any, but not that
/// of their prompt. The last choice depends on the tokens, so that no slot is replaced more often than others.
fn slot(there: &[Option<Info>], after_chunks: &[u8], prompt: Option<&[u8]>) -> usize {
    let saved = |slot: usize| Some(&there[slot].as_ref()?.meta[..]);
    let free = |slot: &usize| prompt.is_none() || saved(*slot) != prompt;
    let continued = (0..SLOTS).filter(free).filter_map(|slot| {
        let saved = saved(slot)?;
        after_chunks.starts_with(saved).then_some((saved.len(), slot))
    });
    let any = || {
        let first = usize::from(blake3::hash(after_chunks).as_bytes()[0]);
        let mut slots = (first..first + SLOTS).map(|slot| slot % SLOTS);
        slots.find(free).unwrap_or(0)
    };
    match continued.max() {
        Some((_, slot)) => slot,
        None => there.iter().position(Option::is_none).unwrap_or_else(any),
    }
}

impl State {
    fn cells_by_position(&self, tokens: usize) -> Result<BlockTable, LlamaError> {
        let cells = self.cells.len();
        if cells != tokens {
            return Err(LlamaError::Tokens { tokens, cells });
        }
        let mut table = vec![BlockTable::NONE; cells];
        for (number, cell) in self.cells.iter().enumerate() {
            let slot = usize::try_from(cell.position).ok();
            let slot = slot.and_then(|position| table.get_mut(position));
            let found = match slot {
                Some(_) if cell.sequences != 1 => format!("in {} sequences", cell.sequences),
                Some(slot) if *slot == BlockTable::NONE => {
                    *slot = number as u32;
                    continue;
                }
                Some(_) => format!("a second one of position {}", cell.position),
                None => format!("of position {}", cell.position),
            };
            return Err(LlamaError::Cell { cell: number, found, last: cells - 1 });
        }
        Ok(BlockTable::List(table))
    }
}

pub(super) fn meta(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

pub(super) fn behind_table(whole: usize, after_chunks: usize) -> BlockTable {
    let mut table = vec![BlockTable::NONE; whole];
    table.extend(0..after_chunks as u32);
    BlockTable::List(table)
}
