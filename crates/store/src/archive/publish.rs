//! Roots: what makes the parts of all ranks a saved prefix.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::key::TOKEN_CHUNK;
use super::record::{Piece, Root, Segment};
use super::save::{Missing, Part};
use super::shape::{GroupShape, Growth};
use super::{Archive, ArchiveError};

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
    /// Publishes what was missing, from the parts of all ranks: one root manifest for each whole token chunk,
    /// the shortest prefix first.
    ///
    /// # Errors
    /// [`ArchiveError::Incomplete`] if the parts do not hold every head of every layer: then nothing is
    /// published. If the store fails, the prefixes that were published before stay.
    pub fn publish(&self, missing: &Missing, parts: &[Part]) -> Result<Published, ArchiveError> {
        missing.check(&self.shape)?;
        let mut groups: Vec<Spans> = vec![Spans::new(); self.shape.groups.len()];
        for part in parts {
            let checked = part.record.check(&self.shape);
            checked.map_err(|why| ArchiveError::unusable("a part", why))?;
            for (spans, segments) in groups.iter_mut().zip(&part.record.groups) {
                for segment in segments {
                    let pieces = spans.entry((segment.from, segment.to)).or_default();
                    pieces.extend_from_slice(&segment.pieces);
                }
            }
        }
        for spans in &mut groups {
            for pieces in spans.values_mut() {
                pieces.sort_unstable();
                pieces.dedup();
            }
        }

        let mut published = Published::default();
        let mut manifests = Vec::new();
        for end in &missing.ends {
            let known = end.root.as_ref();
            let mut root = Root {
                key: missing.keys[end.chunks as usize],
                parent: missing.keys[end.chunks as usize - 1],
                chunks: end.chunks,
                groups: Vec::with_capacity(groups.len()),
            };
            for (index, (shape, spans)) in self.shape.groups.iter().zip(&groups).enumerate() {
                let there = known.and_then(|root| root.groups.get(index)?.clone());
                let segments = match there {
                    Some(segments) => Some(segments),
                    None => shape.segments(end.chunks * TOKEN_CHUNK, spans)?,
                };
                root.groups.push(segments);
            }
            // A snapshot that no engine has any more changes nothing.
            if known.is_some_and(|known| known.groups == root.groups) {
                continue;
            }
            published.roots += 1;
            published.restorable += u64::from(root.groups.iter().all(Option::is_some));
            manifests.push((root.key.root_name(), Bytes::from(root.encode())));
        }
        if !manifests.is_empty() {
            self.store.put_manifests(&manifests)?;
        }
        Ok(published)
    }
}

impl GroupShape {
    /// What a root of `end` tokens holds of the group; `None` where no snapshot was taken there.
    fn segments(&self, end: u64, spans: &Spans) -> Result<Option<Vec<Segment>>, ArchiveError> {
        let segment = |&(from, to): &(u64, u64)| -> Result<Segment, ArchiveError> {
            let pieces = spans.get(&(from, to)).cloned().unwrap_or_default();
            self.whole(from, to, &pieces)?;
            Ok(Segment { from, to, pieces })
        };
        match self.growth {
            Growth::All => Ok(Some(vec![segment(&(end - TOKEN_CHUNK, end))?])),
            Growth::Recurrent if !spans.contains_key(&(0, end)) => Ok(None),
            Growth::Recurrent => Ok(Some(vec![segment(&(0, end))?])),
            Growth::Window => {
                let mut segments = Vec::new();
                let mut from = self.needed(end).start;
                while from < end {
                    let chunk = from / TOKEN_CHUNK * TOKEN_CHUNK;
                    let to = chunk + TOKEN_CHUNK;
                    let known = [(chunk, to), (from, to)]
                        .into_iter()
                        .find(|span| spans.contains_key(span));
                    let Some(span) = known else {
                        return Ok(None);
                    };
                    segments.push(segment(&span)?);
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
                while let Some(piece) = pieces.next_if(|p| {
                    (p.class as usize, p.unit, p.units, p.layer) == (index, unit, units, layer)
                }) {
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
        Ok(())
    }

    /// The components of a class: `k+v`, `x+ssm`.
    fn class_name(&self, class: usize) -> String {
        let members = self.classes[class].members.iter();
        let names = members
            .map(|&(spec, component)| self.specs[spec].geometry().components[component].name);
        names.collect::<Vec<_>>().join("+")
    }
}
