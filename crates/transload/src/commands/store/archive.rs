//! The contents of an archive's manifests, for display.

use std::fmt::Write;

use serde::Serialize;
use transload::archive::{Held, Record};
use transload::store::ManifestName;

use crate::show::{number, text};

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    /// `root` is a saved prefix, `part` is what one rank saved.
    kind: &'static str,
    /// Used by roots only: its key, its parent's key, and its length.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<Prefix>,
    /// The segments of each group, in the order of the groups' names, which only the model knows; `null` if a root has
    /// no snapshot of it.
    groups: Vec<Option<Vec<Segment>>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Prefix {
    key: String,
    parent: String,
    tokens: u64,
    /// The codec of keys and values: `exact`, `q8`, `q4`.
    codec: &'static str,
    /// The engine and its exact version; `null` if the saver did not record it.
    computed_by: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Segment {
    from: u64,
    to: u64,
    pieces: usize,
}

impl Shown {
    /// Reads a manifest. Returns `None` if it does not belong to an archive or cannot be read.
    pub(super) fn of(name: &ManifestName, manifest: &[u8]) -> Option<Self> {
        let segments = |held: Vec<Held>| {
            let segments =
                held.into_iter().map(|held| Segment { from: held.from, to: held.to, pieces: held.pieces.len() });
            segments.collect()
        };
        Some(match Record::read(name, manifest)?.ok()? {
            Record::Root { key, parent, tokens, codec, computed_by, groups, .. } => Self {
                kind: "root",
                prefix: Some(Prefix {
                    key: key.to_string(),
                    parent: parent.to_string(),
                    tokens,
                    codec: codec.name(),
                    computed_by: computed_by.map(|by| by.to_string()),
                }),
                groups: groups.into_iter().map(|held| held.map(segments)).collect(),
            },
            Record::Part { groups } => Self {
                kind: "part",
                prefix: None,
                groups: groups.into_iter().map(|held| Some(segments(held))).collect(),
            },
            _ => return None,
        })
    }

    pub(super) fn lines(&self) -> String {
        let mut lines = match &self.prefix {
            Some(prefix) => format!(
                " root of a saved prefix of {} tokens{}, after {}{}\n",
                number::grouped(prefix.tokens),
                match prefix.codec {
                    "exact" => String::new(),
                    codec => format!(" as {codec}"),
                },
                &prefix.parent[..16],
                match &prefix.computed_by {
                    Some(by) => format!(", computed by {}", text::printable(by)),
                    None => String::new(),
                },
            ),
            None => " part of a saved prefix: what one rank of an engine saved\n".to_owned(),
        };
        for (number, segments) in self.groups.iter().enumerate() {
            let _ = match segments {
                None => writeln!(lines, " group {number}: no snapshot"),
                Some(segments) => {
                    let pieces = segments.iter().map(|segment| segment.pieces as u64).sum();
                    let pieces = number::count(pieces, "piece");
                    match (segments.first(), segments.last()) {
                        (Some(first), Some(last)) => {
                            writeln!(lines, " group {number}: tokens {} to {}, {pieces}", first.from, last.to)
                        }
                        _ => writeln!(lines, " group {number}: nothing needed"),
                    }
                }
            };
        }
        lines
    }
}
