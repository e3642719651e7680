//! What the manifests of an archive say.

use std::fmt::Write;

use serde::Serialize;
use transload::archive::{Held, Record};
use transload::store::ManifestName;

use crate::show::{number, text};

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
    /// How keys and values are stored: `exact`, `q8`, `q4`.
    codec: &'static str,
    /// The engine and its exact version; `null` where its saver did not say.
    computed_by: Option<String>,
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

    /// Lines for a terminal.
    pub(super) fn lines(&self) -> String {
        let mut lines = match &self.prefix {
            Some(prefix) => format!(
                " the root of a saved prefix of {} tokens{}, behind {}{}\n",
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
            None => " what one rank of an engine saved: a part\n".to_owned(),
        };
        for (number, segments) in self.groups.iter().enumerate() {
            let _ = match segments {
                None => writeln!(lines, " group {number}: no snapshot here"),
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
