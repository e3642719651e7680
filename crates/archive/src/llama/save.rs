//! Saving a state.

use transload_layout::Rank;
use transload_memory::Access;
use transload_plan::{BlockTable, Tables};
use transload_store::Put;

use super::LlamaError;
use super::parse::{State, check_head};
use super::shape::RowLayout;
use super::states::{CHUNK, Kind, ObjectKey, PLACES, Rows, States, names, places};
use crate::objects::{Info, Source};
use crate::{Prompt, SaveRequest};

/// What [`States::save`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Bytes of the state that were not in the store before.
    pub bytes: u64,
}

impl States {
    /// Saves the state of a sequence of these tokens. What is saved already is not written again.
    ///
    /// # Errors
    /// If the state cannot be read; if it is not one of these tokens at positions 0, 1, ..., once each in one sequence, or
    /// of the layers that this was opened for (states that are kept whole tell neither); or if the store fails.
    pub fn save(&self, tokens: &[u32], state: &[u8]) -> Result<Saved, LlamaError> {
        self.save_turn(0, tokens, state)
    }

    /// Saves as [`save`](Self::save) does, and leaves the state of the first `prompt` tokens where it is. Otherwise a state
    /// that is kept whole takes the place of one that it continues: the next turn of a chat may begin with the prompt of this
    /// one, and not with its answer.
    ///
    /// # Errors
    /// As for [`save`](Self::save).
    pub fn save_turn(&self, prompt: usize, tokens: &[u32], state: &[u8]) -> Result<Saved, LlamaError> {
        match &self.kind {
            Kind::Rows(rows) => self.save_rows(rows, tokens, state),
            Kind::Whole => {
                check_head(state)?;
                let bytes = match self.room(prompt, tokens)? {
                    Some(room) => self.put(&room, state)?,
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
        let behind = tokens.len() - whole;
        let room = match behind {
            0 => None,
            _ => self.room(0, tokens)?,
        };
        let mut rest = Vec::new();
        let mut saved = Saved::default();
        // SAFETY: `bytes` is borrowed for all of it and only read; the archive's threads end, and its clones of the memories go, before
        // its calls return.
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
                if room.is_none() {
                    return Ok(());
                }
                rest.resize(behind * rows.shape.cell_bytes() as usize, 0);
                let dense = RowLayout::dense(behind);
                let own = (rest.as_mut_ptr(), rest.len());
                // SAFETY: `rest` is not used otherwise before this returns, and the copy ends with it.
                rows.shape.with_memories(&dense, own, Access::ReadWrite, |into| {
                    let from = (memories, &layout, &cells);
                    let into = (into, &dense, &behind_table(whole, behind));
                    rows.shape.copy(whole..tokens.len(), from, into)
                })
            })?;
        }
        if let Some(room) = room {
            saved.bytes += self.put(&room, &rest)?;
        }
        Ok(saved)
    }

    /// Finds a place for what is kept of a sequence behind its whole token chunks, other than that of its first `prompt`
    /// tokens; `None` if as much is there already.
    fn room(&self, prompt: usize, tokens: &[u32]) -> Result<Option<Room>, LlamaError> {
        let chunks = tokens.len() / CHUNK;
        let meta = meta(&tokens[chunks * CHUNK..]);
        let keys = places(&self.keys(tokens)[chunks..]);
        let there = self.objects.has(&names(&keys))?;
        // A rest is of use to all beginnings of its tokens, a whole state is not.
        let has_more = |info: &Info| info.meta.starts_with(&meta);
        if matches!(self.kind, Kind::Rows(_)) && there.iter().flatten().any(has_more) {
            return Ok(None);
        }
        let prompt = tokens.get(chunks * CHUNK..prompt).map(self::meta);
        let key = keys[place(&there, &meta, prompt.as_deref())];
        Ok(Some(Room { key, meta }))
    }

    /// Puts what is kept of a sequence into its place. How many bytes were not in the store before.
    fn put(&self, Room { key, meta }: &Room, value: &[u8]) -> Result<u64, LlamaError> {
        let parts = &[value.into()];
        let put = self.objects.put(&[Source { key, meta, parts }])?;
        Ok(match put[0] {
            Put::Stored => value.len() as u64,
            _ => 0,
        })
    }
}

/// A place for an object, and the tokens that go with it, behind the whole token chunks of the place.
struct Room {
    key: ObjectKey,
    meta: Vec<u8>,
}

/// Which place these tokens take: that of what they continue, or an empty one, or any, but not that of their prompt. The
/// last is chosen by the tokens, so that no place is replaced more often than others.
fn place(there: &[Option<Info>], behind: &[u8], prompt: Option<&[u8]>) -> usize {
    let saved = |place: usize| Some(&there[place].as_ref()?.meta[..]);
    let free = |place: &usize| prompt.is_none() || saved(*place) != prompt;
    let continued = (0..PLACES).filter(free).filter_map(|place| {
        let saved = saved(place)?;
        behind.starts_with(saved).then_some((saved.len(), place))
    });
    let any = || {
        let first = usize::from(blake3::hash(behind).as_bytes()[0]);
        let mut places = (first..first + PLACES).map(|place| place % PLACES);
        places.find(free).unwrap_or(0)
    };
    match continued.max() {
        Some((_, place)) => place,
        None => there.iter().position(Option::is_none).unwrap_or_else(any),
    }
}

impl State {
    /// The cell of each position.
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

/// Tokens as they stand beside an object.
pub(super) fn meta(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// The blocks of rows that begin behind `whole` tokens.
pub(super) fn behind_table(whole: usize, behind: usize) -> BlockTable {
    let mut table = vec![BlockTable::NONE; whole];
    table.extend(0..behind as u32);
    BlockTable::List(table)
}
