//! Restoring of one rank's share.

use transload_memory::Memory;
use transload_plan::Tables;
use transload_store::{ChunkHash, StoreError};

use crate::convert::{RankGroup, Span};
use crate::find::Found;
use crate::key::TOKEN_CHUNK;
use crate::reading::{self, whole_chunk};
use crate::record::{Piece, Root, Segment, Unreadable};
use crate::shape::Growth;
use crate::{ArchiveError, Cache, RankArchive};

/// The result of [`RankArchive::restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The number of tokens after which every group of this rank can continue.
    pub tokens: u64,
    /// The number of pieces that were read.
    pub pieces: u64,
    /// The bytes of these pieces.
    pub bytes: u64,
}

/// The maximum bytes that one thread requests from a store at once, unless a single piece is longer: enough to hide a
/// network's round trip, and little enough memory for an engine's process.
const IN_FLIGHT: u64 = 64 << 20;

struct Item<'a> {
    group: usize,
    root: &'a Root,
    segment: &'a Segment,
    wanted: Span,
}

impl RankArchive {
    /// Restores this rank's share of a saved prefix into its blocks: the tokens from `start` on (the blocks hold the
    /// earlier ones already), and the snapshots of windowed and recurrent groups at the prefix's end. If `start` is at
    /// the end, nothing is done.
    ///
    /// `caches` and `tables` are as for [`save`](Self::save). Every piece is checked against its hash before any of its
    /// bytes is written.
    ///
    /// # Errors
    /// - [`ArchiveError::Missing`] or [`Damaged`](ArchiveError::Damaged) if a piece is not what was saved. The contents
    ///   of the blocks are then undefined. The root that names the piece is removed unless it was put again meanwhile,
    ///   so that the next [`find`](crate::Archive::find) ends before it. If the store cannot tell two puts apart
    ///   (behind `kv_store_v1`), a root that is put at that moment may be removed too. The next save writes the root
    ///   again, and a missing piece too. It replaces a damaged piece only after the store has dropped it, since a store
    ///   keeps what it has under a hash.
    /// - [`ArchiveError::Revoked`] if the [permit](Self::with_permit) is revoked.
    /// - Another error if a table does not fit the deployment (then nothing was written), if a memory does not, or if
    ///   the store fails.
    pub fn restore(
        &self,
        found: &Found,
        start: u64,
        caches: &[impl Clone + Into<Cache>],
        tables: &Tables,
    ) -> Result<Restored, ArchiveError> {
        let caches = &Cache::all(caches);
        self.count("memories", caches.len())?;
        self.count("block tables", tables.0.len())?;
        found.check(&self.archive)?;
        let items = self.wanted(found, start);
        self.check_tables(&items, tables)?;
        self.prefetch(&items)?;
        let group = |item: &Item<'_>| item.group;
        let done = self.on_groups(&items, group, (caches, tables), |held, item, cache, block| {
            let read = self.fetch(held, item, block)?;
            self.touch(|| held.scatter(item.wanted, block, cache))?;
            Ok(read)
        });
        let done = done.inspect_err(|error| self.forget(found, error))?;
        Ok(Restored {
            tokens: found.tokens(),
            pieces: done.iter().map(|(pieces, _)| pieces).sum(),
            bytes: done.iter().map(|(_, bytes)| bytes).sum(),
        })
    }

    /// Returns the segments to read: of every root for growing groups, of the last root for snapshots.
    fn wanted<'a>(&self, found: &'a Found, start: u64) -> Vec<Item<'a>> {
        let mut items = Vec::new();
        let Some(last) = found.last().filter(|_| start < found.tokens()) else {
            return items;
        };
        for (group, shape) in self.archive.shape.groups.iter().enumerate() {
            if self.groups[group].1.is_none() {
                continue;
            }
            let roots = match shape.growth {
                Growth::All => &found.roots[..],
                Growth::Window | Growth::Recurrent => std::slice::from_ref(last),
            };
            let from = match shape.growth {
                Growth::All => start,
                Growth::Window => start.max(shape.needed(found.tokens()).start),
                Growth::Recurrent => 0,
            };
            for root in roots {
                for segment in root.groups[group].iter().flatten() {
                    let wanted = Span { from: segment.from.max(from), to: segment.to };
                    if wanted.from < wanted.to {
                        items.push(Item { group, root, segment, wanted });
                    }
                }
            }
        }
        items
    }

    /// Tells the store which chunks will be read, in about that order. Most segments have few pieces for a rank, and
    /// would take a round trip each.
    fn prefetch(&self, items: &[Item<'_>]) -> Result<(), ArchiveError> {
        let mut hashes: Vec<ChunkHash> = Vec::new();
        for item in items {
            if let Some(held) = &self.groups[item.group].1 {
                let own = item.segment.pieces.iter();
                let own = own.filter(|piece| held.share(piece).is_some());
                hashes.extend(own.map(|piece| ChunkHash::from(piece.hash)));
            }
        }
        Ok(self.archive.store.prefetch_chunks(&hashes)?)
    }

    /// Checks that every block to be written exists and is unique. Spans are bound later, on several threads.
    fn check_tables(&self, items: &[Item<'_>], tables: &Tables) -> Result<(), ArchiveError> {
        for (index, (position, held)) in self.groups.iter().enumerate() {
            let Some(held) = held else { continue };
            let of_group = items.iter().filter(|item| item.group == index);
            let from = of_group.clone().map(|item| item.wanted.from).min();
            let to = of_group.map(|item| item.wanted.to).max();
            if let (Some(from), Some(to)) = (from, to) {
                held.check_table(Span { from, to }, &tables.0[*position])?;
            }
        }
        Ok(())
    }

    fn fetch(&self, held: &RankGroup, item: &Item<'_>, block: &Memory) -> Result<(u64, u64), ArchiveError> {
        let span = item.segment.span();
        let shared = |piece: &&Piece| held.share(piece).is_some();
        let pieces: Vec<&Piece> = item.segment.pieces.iter().filter(shared).collect();
        if !held.complete(&pieces) {
            let why = Unreadable("it does not name every piece of this rank");
            return Err(ArchiveError::unusable("a root", why));
        }
        let codec = self.archive.codec;
        // Values that a codec stores exactly follow its codes.
        let bytes = |piece: &Piece| match codec.is_exact() {
            true => held.piece_bytes(piece, span),
            false => held
                .stored_bytes(codec, piece, span)
                .map_or(u64::MAX, |codes| codes.saturating_add(held.piece_bytes(piece, span))),
        };

        let store = &self.archive.store;
        let batched = store.batch() > 1;
        let mut total = 0;
        let mut rest = pieces.as_slice();
        while !rest.is_empty() {
            let mut in_flight = 0;
            let fits = |piece: &&&Piece| {
                in_flight = bytes(piece).saturating_add(in_flight);
                in_flight <= IN_FLIGHT
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(if batched { count.min(store.batch()) } else { 1 });
            rest = later;
            let hashes: Vec<ChunkHash> = now.iter().map(|piece| piece.hash.into()).collect();
            let read = match store.get_chunks(&hashes) {
                // The batch does not say which one is damaged. Read one at a time.
                Err(StoreError::Damaged { .. }) => hashes.iter().map(|hash| store.get_chunk(hash)).collect(),
                Ok(read) => read.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            for (piece, read) in now.iter().zip::<Vec<_>>(read) {
                let (hash, usable) = (piece.hash.into(), (item.root.chunks - 1) * TOKEN_CHUNK);
                let is_whole = |data: &[u8]| blake3::hash(data) == piece.hash;
                let data = match whole_chunk(&**store, &hash, read, is_whole) {
                    Ok(Some(data)) => data,
                    Ok(None) => return Err(ArchiveError::Missing { hash, usable }),
                    Err(StoreError::Damaged { .. }) => {
                        return Err(ArchiveError::Damaged { hash, usable });
                    }
                    Err(error) => return Err(error.into()),
                };
                let Some(raw) = held.decode(codec, piece, span, &data) else {
                    return Err(ArchiveError::Damaged { hash, usable });
                };
                total += data.len() as u64;
                held.write_piece(block, piece, span, &raw)?;
            }
        }
        Ok((pieces.len() as u64, total))
    }

    /// Removes a root that names a missing or damaged piece, unless it was put again or repaired meanwhile.
    fn forget(&self, found: &Found, error: &ArchiveError) {
        if let ArchiveError::Missing { hash, usable } | ArchiveError::Damaged { hash, usable } = error
            && let Some(root) = found.roots.get((usable / TOKEN_CHUNK) as usize)
        {
            let is_useless = |there: &[u8]| there == root.encode(self.archive.codec) && !self.is_healed(root, hash);
            reading::forget(&*self.archive.store, &root.key.root_name(), is_useless);
        }
    }

    /// Tells whether a missing or damaged piece is intact after all, as this root needs it. If the store cannot be
    /// asked, it counts as intact, because a root is removed only for certain damage.
    fn is_healed(&self, root: &Root, hash: &ChunkHash) -> bool {
        let data = match self.archive.store.get_chunk(hash) {
            Ok(Some(data)) => data,
            Ok(None) | Err(StoreError::Damaged { .. }) => return false,
            Err(_) => return true,
        };
        let codec = self.archive.codec;
        let fits = |(held, segment): (&RankGroup, &Segment)| {
            let of_hash = segment.pieces.iter();
            let mut of_hash = of_hash.filter(|piece| ChunkHash::from(piece.hash) == *hash);
            of_hash.all(|piece| held.decode(codec, piece, segment.span(), &data).is_some())
        };
        let groups = self.groups.iter().zip(&root.groups);
        let mut held = groups.filter_map(|((_, held), segments)| Some((held.as_ref()?, segments)));
        ChunkHash::from(blake3::hash(&data)) == *hash
            && held.all(|(held, segments)| {
                let mut segments = segments.iter().flatten();
                segments.all(|segment| fits((held, segment)))
            })
    }
}

impl Segment {
    fn span(&self) -> Span {
        Span { from: self.from, to: self.to }
    }
}

impl RankGroup {
    pub(crate) fn piece_bytes(&self, piece: &Piece, span: Span) -> u64 {
        self.unit_bytes(piece.class as usize, piece.layers, span) * piece.units
    }

    /// Tells whether the pieces contain every layer of every unit of this rank exactly once.
    fn complete(&self, pieces: &[&Piece]) -> bool {
        for (index, class) in self.classes.iter().enumerate() {
            for unit in class.units.clone() {
                let of_unit = pieces.iter().filter(|piece| {
                    piece.class as usize == index && (piece.unit..piece.unit + piece.units).contains(&unit)
                });
                let mut spans: Vec<_> = of_unit.map(|p| (p.layer, p.layer + p.layers)).collect();
                spans.sort_unstable();
                let mut at = self.layers.start;
                for (start, end) in spans {
                    let joins = start == at || at == self.layers.start && start < at;
                    if !joins {
                        return false;
                    }
                    at = end;
                }
                if at < self.layers.end {
                    return false;
                }
            }
        }
        true
    }
}
