//! Saving of one rank's share.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use transload_memory::Memory;
use transload_plan::{BlockTable, Tables};
use transload_store::{ChunkHash, ManifestName, StoreError};

use crate::convert::{RankGroup, Span};
use crate::key::{PrefixKey, Prompt, TOKEN_CHUNK};
use crate::record::{PartRecord, Piece, Root, Segment, Unreadable};
use crate::shape::{GroupShape, Growth};
use crate::{Archive, ArchiveError, Cache, NAMES, RankArchive};

/// A request to save a prompt's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveRequest {
    /// The number of the prompt's tokens that the blocks hold.
    pub tokens: u64,
    /// The number of tokens that the recurrent state covers, if the model has one. Only a state at a multiple of
    /// [`TOKEN_CHUNK`] can be saved.
    pub state: Option<u64>,
}

impl SaveRequest {
    /// Requests the first `tokens` tokens, without a recurrent state.
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens, state: None }
    }

    /// Adds a recurrent state after this many tokens.
    #[must_use]
    pub fn with_state(mut self, tokens: u64) -> Self {
        self.state = Some(tokens);
        self
    }
}

/// The positions of a prompt at which something is not saved yet. It is computed once and passed to every rank, so that all save the
/// same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    cache: [u8; 32],
    /// A random id of this save, so that parts of two saves are never combined.
    pub(crate) save: [u8; 32],
    /// The keys of 0, 1, ... token chunks.
    pub(crate) keys: Vec<PrefixKey>,
    pub(crate) state: Option<u64>,
    /// The positions to save, in ascending order.
    pub(crate) ends: Vec<End>,
}

/// A position, in whole token chunks, at which something is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) chunks: u64,
    /// The existing root that lacks a snapshot, or `None` if there is no root.
    pub(crate) root: Option<Root>,
}

/// The result of one rank's save. Pass it to [`Archive::publish`], possibly in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub(crate) record: PartRecord,
    /// Bytes that the store did not have before. Only the process that saved knows them: after [`decode`](Self::decode)
    /// the value is 0.
    pub written: u64,
}

impl Missing {
    /// Tells whether everything that can be saved is saved.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Checks that it belongs to this archive's cache, since it may come from another process.
    pub(crate) fn check(&self, archive: &Archive) -> Result<(), ArchiveError> {
        let unusable = |why| ArchiveError::unusable("what is missing", Unreadable(why));
        if self.cache != archive.cache {
            return Err(unusable("it is of another model or cache"));
        }
        let mut last = 0;
        for end in &self.ends {
            if end.chunks <= last || end.chunks >= self.keys.len() as u64 {
                return Err(unusable("its positions are not those of its prompt"));
            }
            last = end.chunks;
            let (key, parent) = (self.keys[last as usize], self.keys[last as usize - 1]);
            if let Some(root) = &end.root {
                let checked = root.check(&archive.shape, last, key, parent);
                checked.map_err(|why| ArchiveError::unusable("what is missing", why))?;
            }
        }
        Ok(())
    }
}

impl Part {
    /// Encodes the part, for [`decode`](Self::decode) in another process.
    pub fn encode(&self) -> Vec<u8> {
        self.record.encode()
    }

    /// Decodes what [`encode`](Self::encode) wrote. Its contents are checked when it is published.
    ///
    /// # Errors
    /// [`ArchiveError::Unusable`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ArchiveError> {
        let record = PartRecord::decode(bytes);
        let record = record.map_err(|why| ArchiveError::unusable("a part", why))?;
        Ok(Self { record, written: 0 })
    }
}

impl Archive {
    /// Returns which of a prompt's first tokens are not saved yet.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the request is for more tokens than the prompt has.
    pub fn missing(&self, prompt: &Prompt<'_>, request: &SaveRequest) -> Result<Missing, ArchiveError> {
        let requested = [("the number of tokens to save", request.tokens)];
        let state = request.state.map(|state| ("the position of the recurrent state", state));
        for (what, tokens) in requested.into_iter().chain(state) {
            if tokens > prompt.len() {
                return Err(ArchiveError::BehindPrompt { what, tokens, prompt: prompt.len() });
            }
        }
        let mut keys = self.keys(prompt);
        keys.truncate((request.tokens / TOKEN_CHUNK) as usize + 1);
        let roots = self.contiguous(&keys)?;
        let saved = roots.len() as u64;
        // Snapshots at earlier positions were unavailable when these were saved, and the engine does not have them now.
        let newest = keys.len() as u64 - 1;
        let lacking = roots.into_iter().filter(|root| {
            self.shape.groups.iter().zip(&root.groups).any(|(group, segments)| {
                let end = root.chunks * TOKEN_CHUNK;
                let at_hand = match group.growth {
                    Growth::All => true,
                    Growth::Window => root.chunks == newest,
                    Growth::Recurrent => request.state == Some(end),
                };
                segments.is_none() && at_hand
            })
        });
        let mut ends: Vec<End> = lacking.map(|root| End { chunks: root.chunks, root: Some(root) }).collect();
        ends.extend((saved + 1..keys.len() as u64).map(|chunks| End { chunks, root: None }));
        let mut save = [0; 32];
        getrandom::fill(&mut save)
            .map_err(|error| StoreError::Io { action: "draw a random number".to_owned(), source: error.into() })?;
        Ok(Missing { cache: self.cache, save, keys, state: request.state, ends })
    }
}

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) group: usize,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) struct Raw {
    class: u32,
    units: Range<u64>,
    layers: Range<u32>,
    pub(crate) bytes: Vec<u8>,
}

impl Archive {
    /// Puts a piece into the store. Returns it with the number of its bytes that the store did not have.
    pub(crate) fn put_piece(&self, raw: &Raw) -> Result<(Piece, u64), ArchiveError> {
        let hash = blake3::hash(&raw.bytes);
        let put = self.store.put_chunk(&ChunkHash::from(hash), &raw.bytes)?;
        let new = match put {
            transload_store::Put::Stored => raw.bytes.len() as u64,
            _ => 0,
        };
        let piece = Piece {
            class: raw.class,
            unit: raw.units.start,
            units: raw.units.end - raw.units.start,
            layer: raw.layers.start,
            layers: raw.layers.end - raw.layers.start,
            hash: *hash.as_bytes(),
        };
        Ok((piece, new))
    }

    pub(crate) fn put_part(
        &self,
        save: [u8; 32],
        groups: usize,
        items: &[Item],
        saved: Vec<Vec<(Piece, u64)>>,
    ) -> Result<Part, ArchiveError> {
        let mut record = PartRecord { save, groups: vec![Vec::new(); groups] };
        let mut written = 0;
        for (item, pieces) in items.iter().zip(saved) {
            written += pieces.iter().map(|(_, new)| new).sum::<u64>();
            record.groups[item.group].push(Segment {
                from: item.span.from,
                to: item.span.to,
                pieces: pieces.into_iter().map(|(piece, _)| piece).collect(),
            });
        }
        if !items.is_empty() {
            let bytes = record.encode();
            self.store.put_manifest(&part_name(&bytes), &bytes)?;
        }
        Ok(Part { record, written })
    }
}

impl RankArchive {
    /// Saves this rank's share of what is missing, and publishes a part manifest. The blocks must not change before it
    /// returns.
    ///
    /// `caches` and `tables` are one memory, of the host or of a GPU (see [`Cache`]), and one block table for each
    /// group, in the order of the deployment's document. Entry i of a table is the block of tokens `[i*block_size,
    /// (i+1)*block_size)`, or [`BlockTable::NONE`] for a block that the engine no longer has. (vLLM writes its null
    /// block, 0, there: translate it.) Windowed groups are saved if their tables have every block that is needed.
    ///
    /// # Errors
    /// Returns an error if a table or memory does not fit the deployment, or if the store fails. Earlier saves are
    /// unaffected, and nothing of this one is visible as a saved prefix before [`Archive::publish`]. After
    /// [`StoreError::Collected`] (a collection interfered), save again.
    pub fn save(
        &self,
        missing: &Missing,
        caches: &[impl Clone + Into<Cache>],
        tables: &Tables,
    ) -> Result<Part, ArchiveError> {
        let caches = &Cache::all(caches);
        let items = self.items(missing, caches, tables)?;
        let group = |item: &Item| item.group;
        let saved = self.on_groups(&items, group, (caches, tables), |held, item, cache, block| {
            let pieces = self.gather(held, item, cache, block)?;
            let put = pieces.iter().map(|raw| self.archive.put_piece(raw));
            put.collect::<Result<Vec<_>, ArchiveError>>()
        })?;
        self.archive.put_part(missing.save, self.groups.len(), &items, saved)
    }

    pub(crate) fn items(
        &self,
        missing: &Missing,
        caches: &[Cache],
        tables: &Tables,
    ) -> Result<Vec<Item>, ArchiveError> {
        self.count("memories", caches.len())?;
        self.count("block tables", tables.0.len())?;
        missing.check(&self.archive)?;
        let mut items = Vec::new();
        for (group, shape) in self.archive.shape.groups.iter().enumerate() {
            let (position, held) = &self.groups[group];
            let Some(held) = held else { continue };
            if !held.classes.iter().any(|class| class.first) {
                continue;
            }
            let mut spans = Vec::new();
            for end in &missing.ends {
                let there = end.root.as_ref().is_some_and(|root| root.groups[group].is_some());
                if !there {
                    let table = &tables.0[*position];
                    spans.extend(spans_of(shape, held, end.chunks, missing.state, table)?);
                }
            }
            // Windows of neighbouring positions share whole token chunks.
            spans.sort_unstable();
            spans.dedup();
            items.extend(spans.into_iter().map(|span| Item { group, span }));
        }
        Ok(items)
    }

    pub(crate) fn gather(
        &self,
        held: &RankGroup,
        item: &Item,
        cache: (&Cache, &BlockTable),
        block: &Memory,
    ) -> Result<Vec<Raw>, ArchiveError> {
        self.touch(|| held.gather(item.span, cache, block))?;
        let (codec, mut pieces) = (self.archive.codec, Vec::new());
        let classes = held.classes.iter().enumerate();
        for (index, class) in classes.filter(|(_, class)| class.first) {
            for units in self.bundles(item.group, index, class.units.clone()) {
                let raw = held.read_piece(block, index, units.clone(), item.span)?;
                pieces.push(Raw {
                    class: index as u32,
                    bytes: held.encode(codec, index, item.span, raw),
                    units,
                    layers: held.layers.clone(),
                });
            }
        }
        Ok(pieces)
    }

    fn bundles(&self, group: usize, class: usize, units: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let bundle = self.archive.shape.groups[group].classes[class].bundle;
        let mut start = units.start;
        std::iter::from_fn(move || {
            // Cut at multiples of the bundle, as every other rank does.
            let end = (start / bundle + 1).saturating_mul(bundle).min(units.end);
            let cut = start..end;
            start = end;
            (!cut.is_empty()).then_some(cut)
        })
    }
}

pub(crate) fn part_name(part: &[u8]) -> ManifestName {
    let name = format!("{NAMES}part/{}", blake3::hash(part).to_hex());
    ManifestName::new(name).expect("89 characters of ASCII")
}

fn spans_of(
    shape: &GroupShape,
    held: &RankGroup,
    chunks: u64,
    state: Option<u64>,
    table: &BlockTable,
) -> Result<Vec<Span>, ArchiveError> {
    let end = chunks * TOKEN_CHUNK;
    match shape.growth {
        Growth::All => Ok(vec![Span { from: end - TOKEN_CHUNK, to: end }]),
        Growth::Recurrent if state == Some(end) => Ok(vec![Span { from: 0, to: end }]),
        Growth::Recurrent => Ok(Vec::new()),
        Growth::Window => window_spans(shape, held, end, table),
    }
}

/// Returns the spans of a window that ends at `end`, or none if a block of it is missing.
fn window_spans(shape: &GroupShape, held: &RankGroup, end: u64, table: &BlockTable) -> Result<Vec<Span>, ArchiveError> {
    let needed = shape.needed(end);
    let mut spans = Vec::new();
    let mut from = needed.start;
    while from < end {
        let chunk = from / TOKEN_CHUNK * TOKEN_CHUNK;
        let to = chunk + TOKEN_CHUNK;
        let whole = Span { from: chunk, to };
        // Save a whole token chunk if possible, because it is the same piece in every window that contains it.
        let span = if from > chunk && shape.is_longer_than_a_chunk() && held.has(whole, table)? {
            whole
        } else {
            Span { from, to }
        };
        if !held.has(span, table)? {
            return Ok(Vec::new());
        }
        spans.push(span);
        from = to;
    }
    Ok(spans)
}
