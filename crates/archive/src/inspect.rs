//! Parsing of an archive's manifests for display and checks.

use transload_store::{ChunkHash, ManifestName, StoreError};

use crate::key::{PrefixKey, TOKEN_CHUNK};
use crate::origin::ComputedBy;
use crate::record::{PartRecord, Root, Segment};
use crate::{Codec, NAMES};

/// A manifest of an archive, without the names of groups and components, which only the model's cache has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// A saved prefix.
    Root {
        /// The prefix's key.
        key: PrefixKey,
        /// The key of the prefix that is one token chunk shorter.
        parent: PrefixKey,
        /// The prefix's length in tokens.
        tokens: u64,
        /// The codec of its keys and values.
        codec: Codec,
        /// The engine that computed it, if known.
        computed_by: Option<ComputedBy>,
        /// For each group, ordered by name, what this root adds. `None` if the root has no snapshot of the group.
        groups: Vec<Option<Vec<Held>>>,
    },
    /// The pieces that one rank saved.
    Part {
        /// For each group, ordered by name.
        groups: Vec<Vec<Held>>,
    },
}

/// Pieces of some tokens of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The first token; 0 for recurrent state.
    pub from: u64,
    /// One past the last token.
    pub to: u64,
    /// The store chunks of the pieces.
    pub pieces: Vec<ChunkHash>,
}

impl Record {
    /// Parses a manifest. Returns `None` if its name is not that of an archive. The name may have a prefix in front, as
    /// in a store whose handle was opened below its root.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the manifest does not match its name.
    pub fn read(name: &ManifestName, manifest: &[u8]) -> Option<Result<Self, StoreError>> {
        let at = name.as_str().rfind(NAMES)?;
        let own = &name.as_str()[at + NAMES.len()..];
        let damaged = |how: &str| {
            Err(StoreError::Damaged { what: format!("the archive's manifest {name}"), how: how.to_owned() })
        };
        Some(match own.strip_prefix("part/") {
            Some(digest) => match PartRecord::decode(manifest) {
                Ok(_) if blake3::hash(manifest).to_hex().as_str() != digest => {
                    damaged("it is another part than its name says")
                }
                Ok(part) => Ok(Self::Part { groups: part.groups.into_iter().map(held).collect() }),
                Err(why) => damaged(why.0),
            },
            None => match Root::decode_any(manifest) {
                Ok((_, root)) if root.key.to_string() != own => {
                    damaged("it is the root of another prefix than its name says")
                }
                Ok((codec, root)) => Ok(Self::Root {
                    key: root.key,
                    parent: root.parent,
                    tokens: root.chunks.saturating_mul(TOKEN_CHUNK),
                    codec,
                    computed_by: root.computed_by,
                    groups: root.groups.into_iter().map(|group| group.map(held)).collect(),
                }),
                Err(why) => damaged(why.0),
            },
        })
    }

    /// Returns every store chunk that the manifest needs.
    pub fn pieces(&self) -> impl Iterator<Item = &ChunkHash> {
        let (roots, parts): (&[_], &[_]) = match self {
            Self::Root { groups, .. } => (groups, &[]),
            Self::Part { groups } => (&[], groups),
        };
        let held = roots.iter().flatten().chain(parts).flatten();
        held.flat_map(|held| &held.pieces)
    }
}

fn held(segments: Vec<Segment>) -> Vec<Held> {
    let held = segments.into_iter().map(|segment| Held {
        from: segment.from,
        to: segment.to,
        pieces: segment.pieces.iter().map(|piece| piece.hash.into()).collect(),
    });
    held.collect()
}
