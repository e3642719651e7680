//! Roots: the manifests that combine the parts of all ranks into a saved prefix.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::key::TOKEN_CHUNK;
use crate::record::{Piece, Root, Segment, Unreadable};
use crate::save::{Missing, Part, part_name};
use crate::shape::{GroupShape, Growth};
use crate::{Archive, ArchiveError};

/// The result of [`Archive::publish`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The number of root manifests that were written.
    pub roots: u64,
    /// The number of those roots at which every group can continue.
    pub restorable: u64,
}

type Spans = BTreeMap<(u64, u64), Vec<Piece>>;

impl Archive {
    /// Publishes a save from the parts of all ranks: one root manifest for each whole token chunk that was missing.
    ///
    /// Roots that another process has published meanwhile stay, and get the snapshots that they lack. A root that was to
    /// get a snapshot and was removed meanwhile stays away, since the ranks have saved nothing else for it. Longer
    /// prefixes are written first, so that a visible prefix is complete, and a store evicts its beginning last. Then the
    /// part manifests are removed. Parts of a save that is never published stay, with their pieces, for the grace period
    /// of a collection.
    ///
    /// # Errors
    /// The call publishes nothing in three cases: [`ArchiveError::Incomplete`] if the parts lack a head of a layer,
    /// [`ArchiveError::Unusable`] if one belongs to another save, and [`ArchiveError::Expired`] if a collection has
    /// removed a part because the save took longer than its grace period. If the store fails, none, some or all of the
    /// roots may exist, the longest first; a later save completes them.
    pub fn publish(&self, missing: &Missing, parts: &[Part]) -> Result<Published, ArchiveError> {
        missing.check(self)?;
        let groups = self.merge(missing, parts)?;
        let ends: Vec<usize> = missing.ends.iter().map(|end| end.chunks as usize).collect();
        let mut published = Published::default();
        let mut manifests = Vec::new();
        for (end, known) in missing.ends.iter().zip(self.roots(&missing.keys, &ends)?) {
            if end.root.is_some() && known.is_none() {
                continue;
            }
            let chunks = end.chunks as usize;
            let mut root = Root {
                key: missing.keys[chunks],
                parent: missing.keys[chunks - 1],
                chunks: end.chunks,
                // An existing root keeps its engine, since only snapshots are added to it.
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
            // There is no new snapshot, so the root would not change.
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
        // The shorter prefixes were last used before these were put, so they would be evicted first. Use them again.
        if let (Some(first), false) = (ends.first(), manifests.is_empty()) {
            let before: Vec<usize> = (1..*first).collect();
            for chunks in before.rchunks(self.store.batch().max(1)) {
                self.roots(&missing.keys, chunks)?;
            }
        }
        Ok(published)
    }

    /// Checks that what the ranks saved was not collected meanwhile. Where reading counts as a use, it then stays for
    /// another grace period. On S3, which does not record reads, a collection that is running may still remove the
    /// pieces of a save that took longer than the grace period. The roots then lack them.
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
    /// Returns the group's segments in a root of `end` tokens. `None` if not every rank took a snapshot there.
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

    /// Checks that sorted pieces contain every layer of every unit of every class exactly once.
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
            // Two ranks both claim to be the first that holds it.
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

    /// Returns the names of a class's components: `k+v`, `x+ssm`.
    fn class_name(&self, class: usize) -> String {
        let members = self.classes[class].members.iter();
        let names = members.map(|&(spec, component)| self.specs[spec].geometry().components[component].name);
        names.collect::<Vec<_>>().join("+")
    }
}
