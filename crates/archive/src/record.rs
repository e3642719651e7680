//! Root manifests and part manifests.
//!
//! Both are [records](crate::manifest).

use serde::{Deserialize, Serialize};
use transload_plan::codec::Codec;

use crate::key::{PrefixKey, TOKEN_CHUNK};
pub(crate) use crate::manifest::Unreadable;
use crate::manifest::{decode, encode};
use crate::origin::ComputedBy;
use crate::shape::{GroupShape, Growth, Shape};

const ROOT: &[u8; 8] = b"TLroot\x02\n";
/// The magic bytes of a root whose pieces a codec has encoded. The codec's name follows.
const ENCODED_ROOT: &[u8; 8] = b"TLroot\x03\n";
const PART: &[u8; 8] = b"TLpart\x02\n";

/// A saved prefix: its parent, and what its last token chunk adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Root {
    /// The prefix's key, so that a manifest under a wrong name is detected.
    pub(crate) key: PrefixKey,
    pub(crate) parent: PrefixKey,
    pub(crate) chunks: u64,
    /// The engine that computed it, for display. The key determines which engines share it.
    pub(crate) computed_by: Option<ComputedBy>,
    /// For each group of the cache, ordered by name, its pieces. `None` if no snapshot of a windowed or recurrent group
    /// was taken at this position.
    pub(crate) groups: Vec<Option<Vec<Segment>>>,
}

/// Tokens `[from, to)` of a group within one token chunk. For recurrent groups the state after `to` (`from` is 0).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) pieces: Vec<Piece>,
}

/// Units of one class over a span of layers, stored as one chunk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The index of the group's class. Classes are ordered by their first components.
    pub(crate) class: u32,
    /// The first unit (head, group of heads) of that class.
    pub(crate) unit: u64,
    pub(crate) units: u64,
    /// The span's first layer, as an index into the group's layers.
    pub(crate) layer: u32,
    pub(crate) layers: u32,
    /// The BLAKE3-256 of the bytes, which is also the store chunk's hash.
    pub(crate) hash: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartRecord {
    /// The save that they belong to: [`Missing::save`](crate::save::Missing).
    pub(crate) save: [u8; 32],
    pub(crate) groups: Vec<Vec<Segment>>,
}

impl Root {
    pub(crate) fn encode(&self, codec: Codec) -> Vec<u8> {
        match codec.is_exact() {
            true => encode(ROOT, self),
            false => encode(ENCODED_ROOT, &(codec.name(), self)),
        }
    }

    pub(crate) fn decode(codec: Codec, bytes: &[u8]) -> Result<Self, Unreadable> {
        match Self::decode_any(bytes)? {
            (of, root) if of == codec => Ok(root),
            _ => Err(Unreadable("it is of another codec")),
        }
    }

    pub(crate) fn decode_any(bytes: &[u8]) -> Result<(Codec, Self), Unreadable> {
        if !bytes.starts_with(ENCODED_ROOT) {
            return Ok((Codec::Exact, decode(ROOT, bytes)?));
        }
        let (codec, root): (String, Self) = decode(ENCODED_ROOT, bytes)?;
        match codec.parse() {
            Ok(Codec::Exact) | Err(_) => Err(Unreadable("its codec is not known here")),
            Ok(codec) => Ok((codec, root)),
        }
    }

    /// Checks that it is the root of these keys, and that its contents fit this cache and position.
    pub(crate) fn check(
        &self,
        shape: &Shape,
        chunks: u64,
        key: PrefixKey,
        parent: PrefixKey,
    ) -> Result<(), Unreadable> {
        if (self.key, self.parent, self.chunks) != (key, parent, chunks) {
            return Err(Unreadable("it is of another prefix"));
        }
        if self.groups.len() != shape.groups.len() {
            return Err(Unreadable("it does not have the groups of this cache"));
        }
        for (group, segments) in shape.groups.iter().zip(&self.groups) {
            let Some(segments) = segments else {
                if group.growth == Growth::All {
                    return Err(Unreadable("it lacks the pieces of a group"));
                }
                continue;
            };
            let end = chunks * TOKEN_CHUNK;
            let spans = segments.iter().map(|segment| (segment.from, segment.to));
            let right = match group.growth {
                Growth::All => spans.eq([(end - TOKEN_CHUNK, end)]),
                Growth::Recurrent => spans.eq([(0, end)]),
                Growth::Window => covers(segments, group.needed(end)),
            };
            if !right {
                return Err(Unreadable("its pieces are of other tokens"));
            }
            segments.iter().try_for_each(|segment| segment.check(group))?;
        }
        Ok(())
    }
}

/// Tells whether segments, in ascending order, cover `needed`, each within one token chunk.
fn covers(segments: &[Segment], needed: std::ops::Range<u64>) -> bool {
    let mut at = needed.start;
    segments.iter().all(|segment| {
        let inside = segment.from < segment.to && segment.from / TOKEN_CHUNK == (segment.to - 1) / TOKEN_CHUNK;
        let joins = segment.from <= at && at < segment.to && segment.to <= needed.end;
        at = segment.to;
        inside && joins
    }) && at >= needed.end
}

impl Segment {
    /// Checks that every piece exists in the group. Readers check that none is missing.
    fn check(&self, group: &GroupShape) -> Result<(), Unreadable> {
        let all = self.pieces.iter().all(|piece| {
            let class = group.classes.get(piece.class as usize);
            let units = piece.unit.checked_add(piece.units);
            let layers = piece.layer.checked_add(piece.layers);
            class.is_some_and(|class| units.is_some_and(|end| end <= class.units))
                && layers.is_some_and(|end| end as usize <= group.layers.len())
                && piece.units > 0
                && piece.layers > 0
        });
        all.then_some(()).ok_or(Unreadable("it names a piece that the cache does not have"))
    }
}

impl PartRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(PART, self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        decode(PART, bytes)
    }

    pub(crate) fn check(&self, shape: &Shape) -> Result<(), Unreadable> {
        if self.groups.len() != shape.groups.len() {
            return Err(Unreadable("it does not have the groups of this cache"));
        }
        let mut groups = shape.groups.iter().zip(&self.groups);
        groups.try_for_each(|(group, segments)| segments.iter().try_for_each(|segment| segment.check(group)))
    }
}
