//! Roots: what makes the parts of all ranks a saved prefix.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::key::TOKEN_CHUNK;
use crate::record::{Piece, Root, Segment, Unreadable};
use crate::save::{Missing, Part, part_name};
use crate::shape::{GroupShape, Growth};
use crate::{Archive, ArchiveError};

/// What [`Archive::publish`] made visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Root manifests that were written.
    pub roots: u64,
    /// Of those, the ones at which every group can go on.
    pub restorable: u64,
}

/// The pieces of all parts, by the tokens they are of.
type Spans = BTreeMap<(u64, u64), Vec<Piece>>;

impl Archive {
    /// Publishes what was missing, from the parts of all ranks: one root manifest for each whole token chunk.
    ///
    /// Roots that somebody else has published meanwhile stay, and get the snapshots that they lack. Longer
    /// prefixes come first, so that a prefix is seen when it is whole, and its beginning is what a store evicts
    /// last. Then the part manifests go. Those of a save that is never published stay, with their pieces, for the grace
    /// period of a collection.
    ///
    /// # Errors
    /// [`ArchiveError::Incomplete`] if the parts do not hold every head of every layer, and
    /// [`ArchiveError::Unusable`] if one is of another save: then nothing is published.
    /// Neither if a collection has removed a part, because the save took longer than its grace period
    /// ([`ArchiveError::Expired`]). If the store fails, some
    /// of the longer prefixes may be there, without those before them; a later save completes them.
    pub fn publish(&self, missing: &Missing, parts: &[Part]) -> Result<Published, ArchiveError> {
        missing.check(self)?;
        let groups = self.merge(missing, parts)?;
        let ends: Vec<usize> = missing.ends.iter().map(|end| end.chunks as usize).collect();
        let mut published = Published::default();
        let mut manifests = Vec::new();
        for (chunks, known) in ends.iter().zip(self.roots(&missing.keys, &ends)?) {
            let mut root = Root {
                key: missing.keys[*chunks],
                parent: missing.keys[*chunks - 1],
                chunks: *chunks as u64,
                // Of whose root stands: snapshots are added to it.
                computed_by: match &known {
                    Some(known) => known.computed_by.clone(),
                    None => self.model.computed_by.clone(),
                },
                groups: Vec::with_capacity(groups.len()),
            };
            for (index, (shape, spans)) in self.shape.groups.iter().zip(&groups).enumerate() {
                let there = known.as_ref().and_then(|root| root.groups[index].clone());
                root.groups.push(match there {
                    Some(segments) => Some(segments),
                    None => shape.segments(root.chunks * TOKEN_CHUNK, spans)?,
                });
            }
            // A snapshot that no engine has any more changes nothing.
            if known.is_some_and(|known| known.groups == root.groups) {
                continue;
            }
            published.roots += 1;
            published.restorable += u64::from(root.groups.iter().all(Option::is_some));
            manifests.push((root.key.root_name(), Bytes::from(root.encode(self.codec))));
        }
        manifests.reverse();
        if !manifests.is_empty() {
            self.check_parts(parts)?;
            self.store.put_manifests(&manifests)?;
        }
        for part in parts {
            self.store.delete_manifest(&part_name(&part.encode()))?;
        }
        // What these go on from was used before they were put, and would be evicted before them.
        if let (Some(first), false) = (ends.first(), manifests.is_empty()) {
            let before: Vec<usize> = (1..*first).collect();
            for chunks in before.rchunks(self.store.batch().max(1)) {
                self.roots(&missing.keys, chunks)?;
            }
        }
        Ok(published)
    }

    /// That what the ranks saved was not collected meanwhile. Where reading a part is a use of it, it will not be for
    /// another grace period. On S3, which does not know what was read, a collection that runs by now may yet take the
    /// pieces of a save that took longer than its grace period, and the roots then miss them.
    fn check_parts(&self, parts: &[Part]) -> Result<(), ArchiveError> {
        let names = parts
            .iter()
            .filter(|part| part.record.groups.iter().any(|group| !group.is_empty()))
            .map(|part| part_name(&part.encode()));
        let names: Vec<_> = names.collect();
        for names in names.chunks(self.store.batch().max(1)) {
            if self.store.get_manifests(names)?.contains(&None) {
                return Err(ArchiveError::Expired);
            }
        }
        Ok(())
    }

    /// The pieces of all parts.
    fn merge(&self, missing: &Missing, parts: &[Part]) -> Result<Vec<Spans>, ArchiveError> {
        let mut groups: Vec<Spans> = vec![Spans::new(); self.shape.groups.len()];
        for part in parts {
            let unusable = |why| ArchiveError::unusable("a part", why);
            part.record.check(&self.shape).map_err(unusable)?;
            if part.record.save != missing.save {
                return Err(unusable(Unreadable("it is of another save")));
            }
            for (spans, segments) in groups.iter_mut().zip(&part.record.groups) {
                for segment in segments {
                    let pieces = spans.entry((segment.from, segment.to)).or_default();
                    pieces.extend_from_slice(&segment.pieces);
                }
            }
        }
        for pieces in groups.iter_mut().flat_map(Spans::values_mut) {
            pieces.sort_unstable();
            pieces.dedup();
        }
        Ok(groups)
    }
}

impl GroupShape {
    /// What a root of `end` tokens holds of the group; `None` where no snapshot was taken there, or not by every
    /// rank.
    fn segments(&self, end: u64, spans: &Spans) -> Result<Option<Vec<Segment>>, ArchiveError> {
        let segment = |(from, to): (u64, u64)| -> Result<Segment, ArchiveError> {
            let pieces = spans.get(&(from, to)).cloned().unwrap_or_default();
            self.whole(from, to, &pieces)?;
            Ok(Segment { from, to, pieces })
        };
        match self.growth {
            Growth::All => Ok(Some(vec![segment((end - TOKEN_CHUNK, end))?])),
            Growth::Recurrent => Ok(segment((0, end)).ok().map(|state| vec![state])),
            Growth::Window => {
                let mut segments = Vec::new();
                let mut from = self.needed(end).start;
                while from < end {
                    let chunk = from / TOKEN_CHUNK * TOKEN_CHUNK;
                    let to = chunk + TOKEN_CHUNK;
                    let whole = segment((chunk, to)).or_else(|_| segment((from, to)));
                    let Ok(whole) = whole else {
                        return Ok(None);
                    };
                    segments.push(whole);
                    from = to;
                }
                Ok(Some(segments))
            }
        }
    }

    /// That sorted pieces hold every layer of every unit of every class exactly once.
    fn whole(&self, from: u64, to: u64, pieces: &[Piece]) -> Result<(), ArchiveError> {
        let mut pieces = pieces.iter().peekable();
        for (index, class) in self.classes.iter().enumerate() {
            let mut unit = 0;
            while unit < class.units {
                let mut layer = 0;
                let units = pieces.peek().map_or(0, |piece| piece.units);
                while let Some(piece) =
                    pieces.next_if(|p| (p.class as usize, p.unit, p.units, p.layer) == (index, unit, units, layer))
                {
                    layer += piece.layers;
                }
                if layer as usize != self.layers.len() {
                    return Err(ArchiveError::Incomplete {
                        group: self.name.clone(),
                        from,
                        to,
                        what: self.class_name(index),
                        unit,
                        layer,
                    });
                }
                unit += units;
            }
        }
        match pieces.next() {
            None => Ok(()),
            // Two ranks that both claim to be the first to hold it.
            Some(piece) => Err(ArchiveError::Incomplete {
                group: self.name.clone(),
                from,
                to,
                what: self.class_name(piece.class as usize),
                unit: piece.unit,
                layer: piece.layer,
            }),
        }
    }

    /// The components of a class: `k+v`, `x+ssm`.
    fn class_name(&self, class: usize) -> String {
        let members = self.classes[class].members.iter();
        let names = members.map(|&(spec, component)| self.specs[spec].geometry().components[component].name);
        names.collect::<Vec<_>>().join("+")
    }
}
