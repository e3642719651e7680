//! What the manifests of an archive say, and whether their pieces are there.

use std::collections::HashSet;
use std::fmt::Write;

use serde::Serialize;
use transload::store::archive::{Held, NAMES, Record};
use transload::store::backend::{Fault, Inventory};
use transload::store::{Backend, ManifestName, StoreError};

use crate::show::number;

/// A manifest of an archive, as shown.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    /// `root`: a saved prefix; `part`: what one rank saved.
    kind: &'static str,
    /// Of a root: its key and its parent's, and its length.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<Prefix>,
    /// By the name of the group, which only the model knows; `null` where a root has no snapshot of it.
    groups: Vec<Option<Vec<Segment>>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Prefix {
    key: String,
    parent: String,
    tokens: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Segment {
    from: u64,
    to: u64,
    pieces: usize,
}

impl Shown {
    /// `None` if it is no manifest of an archive, or one that cannot be read.
    pub(super) fn of(name: &ManifestName, manifest: &[u8]) -> Option<Self> {
        let segments = |held: Vec<Held>| {
            let segments = held.into_iter().map(|held| Segment {
                from: held.from,
                to: held.to,
                pieces: held.pieces.len(),
            });
            segments.collect()
        };
        Some(match Record::read(name, manifest)?.ok()? {
            Record::Root {
                key,
                parent,
                tokens,
                groups,
            } => Self {
                kind: "root",
                prefix: Some(Prefix {
                    key: key.to_string(),
                    parent: parent.to_string(),
                    tokens,
                }),
                groups: groups.into_iter().map(|held| held.map(segments)).collect(),
            },
            Record::Part { groups } => Self {
                kind: "part",
                prefix: None,
                groups: groups
                    .into_iter()
                    .map(|held| Some(segments(held)))
                    .collect(),
            },
            _ => return None,
        })
    }

    /// Lines for a terminal.
    pub(super) fn lines(&self) -> String {
        let mut text = match &self.prefix {
            Some(prefix) => format!(
                " the root of a saved prefix of {} tokens, behind {}\n",
                number::grouped(prefix.tokens),
                &prefix.parent[..16],
            ),
            None => " what one rank of an engine saved: a part\n".to_owned(),
        };
        for (number, segments) in self.groups.iter().enumerate() {
            let _ = match segments {
                None => writeln!(text, " group {number}: no snapshot here"),
                Some(segments) => {
                    let pieces = segments.iter().map(|segment| segment.pieces as u64).sum();
                    let pieces = number::count(pieces, "piece");
                    match (segments.first(), segments.last()) {
                        (Some(first), Some(last)) => {
                            writeln!(
                                text,
                                " group {number}: tokens {} to {}, {pieces}",
                                first.from, last.to
                            )
                        }
                        _ => writeln!(text, " group {number}: nothing needed"),
                    }
                }
            };
        }
        text
    }
}

/// Finds roots and parts that cannot be read, and pieces that are gone. `fault` hears whose fault it is, too.
pub(super) fn verify(
    store: &dyn Backend,
    inventory: &dyn Inventory,
    fault: &mut dyn FnMut(&ManifestName, Fault),
) -> Result<(), StoreError> {
    let mut names = Vec::new();
    inventory.manifests(&mut |entry| {
        if entry.name.as_str().contains(NAMES) {
            names.push(entry.name);
        }
        Ok(())
    })?;
    if names.is_empty() {
        return Ok(());
    }
    let mut chunks = HashSet::new();
    inventory.chunks(&mut |entry| {
        chunks.insert(entry.hash);
        Ok(())
    })?;
    for names in names.chunks(store.batch().max(1)) {
        for (name, manifest) in names.iter().zip(inventory.peek_manifests(names)?) {
            // Gone since it was listed.
            let Some(manifest) = manifest else { continue };
            let record = match Record::read(name, &manifest) {
                Some(Ok(record)) => record,
                Some(Err(StoreError::Damaged { what, how })) => {
                    fault(name, Fault { what, how });
                    continue;
                }
                Some(Err(error)) => return Err(error),
                None => continue,
            };
            let gone = record
                .pieces()
                .filter(|piece| !chunks.contains(piece))
                .count() as u64;
            // Readers need no parts.
            if gone > 0 && matches!(record, Record::Root { .. }) {
                let what = format!("saved prefix {name}");
                let how = format!("{} of it are gone", number::count(gone, "piece"));
                fault(name, Fault { what, how });
            }
        }
    }
    Ok(())
}
