//! What the manifests of an archive say, and whether their pieces are there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use serde::Serialize;
use transload::store::archive::{Held, NAMES, Record};
use transload::store::backend::{Fault, Inventory, ManifestEntry};
use transload::store::{Backend, ManifestName, StoreError};

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
                computed_by,
                groups,
                ..
            } => Self {
                kind: "root",
                prefix: Some(Prefix {
                    key: key.to_string(),
                    parent: parent.to_string(),
                    tokens,
                    computed_by: computed_by.map(|by| by.to_string()),
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
        let mut lines = match &self.prefix {
            Some(prefix) => format!(
                " the root of a saved prefix of {} tokens, behind {}{}\n",
                number::grouped(prefix.tokens),
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
                            writeln!(
                                lines,
                                " group {number}: tokens {} to {}, {pieces}",
                                first.from, last.to
                            )
                        }
                        _ => writeln!(lines, " group {number}: nothing needed"),
                    }
                }
            };
        }
        lines
    }
}

/// What computed the saved prefixes of a store, where their savers said.
#[derive(Debug, Default)]
pub(super) struct Origins(HashMap<ManifestName, String>);

impl Origins {
    /// Looks into all roots among these manifests, so many at a time. What cannot be read is for verifying to tell.
    pub(super) fn read(
        inventory: &dyn Inventory,
        batch: usize,
        manifests: &[ManifestEntry],
    ) -> Result<Self, StoreError> {
        let names = manifests.iter().map(|entry| &entry.name);
        let names = names.filter(|name| name.as_str().contains(NAMES)).cloned();
        let names: Vec<ManifestName> = names.collect();
        let mut origins = HashMap::new();
        for name in names.chunks(batch.max(1)) {
            let found = match inventory.peek_manifests(name) {
                // One of them is; the others are told of.
                Err(StoreError::Damaged { .. }) => {
                    let each = name.iter().map(std::slice::from_ref);
                    let each = each.map(|name| match inventory.peek_manifests(name) {
                        Err(StoreError::Damaged { .. }) => Ok(None),
                        other => Ok(other?.pop().flatten()),
                    });
                    each.collect::<Result<Vec<_>, StoreError>>()?
                }
                other => other?,
            };
            for (name, manifest) in name.iter().zip(found) {
                let record = manifest.and_then(|manifest| Record::read(name, &manifest));
                if let Some(Ok(Record::Root {
                    computed_by: Some(by),
                    ..
                })) = record
                {
                    origins.insert(name.clone(), by.to_string());
                }
            }
        }
        Ok(Self(origins))
    }

    pub(super) fn of(&self, name: &ManifestName) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A line for each engine.
    pub(super) fn lines(&self) -> String {
        let mut engines: BTreeMap<&str, u64> = BTreeMap::new();
        for by in self.0.values() {
            *engines.entry(by).or_default() += 1;
        }
        let lines = engines.into_iter().map(|(by, roots)| {
            let roots = number::count(roots, "saved token chunk");
            format!(" {roots} computed by {}\n", text::printable(by))
        });
        lines.collect()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use transload::layout::Rank;
    use transload::store::archive::{
        Archive, ComputedBy, Model, Prompt, SaveRequest, Sharing, TOKEN_CHUNK,
    };
    use transload::store::backend::file::{FileOptions, FileStore};
    use transload::transfer::memory::Memory;
    use transload::transfer::plan::{BlockTable, Tables};

    use super::*;
    use crate::commands::shapes::Llama;

    /// A batch that cannot be read because of one of it tells of the others.
    #[test]
    fn one_damaged_root_leaves_the_origins_of_the_others() {
        const TOKENS: u64 = 4 * TOKEN_CHUNK;
        let shape = Llama {
            name: "saver",
            model: "small",
            layers: 1,
            heads: 1,
            tp: 1,
            block_size: TOKENS as u32,
            num_blocks: 1,
            order: "NHD",
        };
        let folder = tempfile::tempdir().expect("a folder");
        let store = FileStore::open(folder.path(), FileOptions::new()).expect("a store");
        let store = Arc::new(store);
        let deployment = shape.deployment().expect("a deployment");
        let by = ComputedBy::new("vllm", "0.32.0");
        let model = Model::new("small", "").with_engine(by, Sharing::Any);
        let archive = Archive::new(store.clone(), model, &deployment).expect("an archive");
        let tokens: Vec<u32> = (0..TOKENS as u32).collect();
        let request = SaveRequest::tokens(TOKENS);
        let missing = archive
            .missing(&Prompt::new(&tokens), &request)
            .expect("what to save");
        let bytes = deployment.groups()[0].placement(0).allocation_bytes as usize;
        let caches = [Memory::allocate(&[bytes]).expect("memory")];
        let rank = archive.rank(&deployment, Rank(0)).expect("a rank");
        let part = rank.save(&missing, &caches, &Tables(vec![BlockTable::Identity]));
        archive
            .publish(&missing, &[part.expect("a part")])
            .expect("published");

        let mut entries = Vec::new();
        let listed = store.manifests(&mut |entry| {
            entries.push(entry);
            Ok(())
        });
        listed.expect("a list");
        assert_eq!(entries.len(), 4);
        let folders = std::fs::read_dir(folder.path().join("manifests")).expect("folders");
        let mut files =
            folders.flat_map(|sub| std::fs::read_dir(sub.expect("one").path()).expect("files"));
        let file = files.next().expect("a manifest").expect("a file").path();
        let whole = std::fs::read(&file).expect("a file");
        std::fs::remove_file(&file).expect("removed");
        std::fs::write(&file, &whole[..whole.len() / 2]).expect("written");
        let origins = Origins::read(&*store, 1024, &entries).expect("origins");
        let mut told: Vec<_> = entries
            .iter()
            .map(|entry| origins.of(&entry.name))
            .collect();
        told.sort();
        let by = Some("vllm 0.32.0");
        assert_eq!(told, [None, by, by, by]);
    }
}
