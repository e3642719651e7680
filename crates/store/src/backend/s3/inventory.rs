//! Listing, verifying and collecting.
//!
//! A listing shows the manifests below the handle's prefix, named as the handle names them; chunks, usage and
//! collections are those of the whole root. Times are those of the last put.

use std::collections::HashMap;
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;

use super::keys::NameOf;
use super::{S3Store, keys};
use crate::backend::sealed::{HEADER, Seal};
use crate::backend::{
    ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, References,
    Usage,
};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

/// Objects that are read together when all are read.
const TOGETHER: usize = 64;

/// A manifest in a listing.
struct Listed {
    path: Path,
    /// `None` if only the object knows.
    name: Option<String>,
    size: u64,
    modified: SystemTime,
}

impl Inventory for S3Store {
    /// Names that are hashed in their keys cost a request each.
    fn manifests(
        &self,
        visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for listed in self.list_manifests(&mut |_| {})? {
            let name = match listed.name {
                Some(name) => name,
                None => match self.read_manifest(&listed.path)? {
                    Some((name, _)) => name,
                    None => continue,
                },
            };
            let overhead = (HEADER + 2 + name.len()) as u64;
            let Some(Ok(name)) = name.strip_prefix(&self.prefix).map(ManifestName::new) else {
                continue;
            };
            let mut entry = ManifestEntry::new(name, listed.size.saturating_sub(overhead));
            entry.last_used = Some(listed.modified);
            visit(entry)?;
        }
        Ok(())
    }

    fn chunks(
        &self,
        visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for (hash, meta) in self.list_chunks(&mut |_| {})? {
            let mut entry = ChunkEntry::new(hash, meta.size.saturating_sub(HEADER as u64));
            entry.last_used = Some(meta.last_modified.into());
            visit(entry)?;
        }
        Ok(())
    }

    fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        for listed in self.list_manifests(&mut |_| {})? {
            let name = listed.name.map_or(0, |name| name.len());
            usage.manifests += 1;
            usage.manifest_bytes += listed.size.saturating_sub((HEADER + 2 + name) as u64);
            usage.total_bytes += listed.size;
        }
        for (_, meta) in self.list_chunks(&mut |_| {})? {
            usage.chunks += 1;
            usage.chunk_bytes += meta.size.saturating_sub(HEADER as u64);
            usage.total_bytes += meta.size;
        }
        Ok(usage)
    }

    fn verify(
        &self,
        progress: &mut dyn FnMut(Progress),
        fault: &mut dyn FnMut(Fault),
    ) -> Result<(), StoreError> {
        let chunks = self.list_chunks(fault)?;
        let total = chunks.iter().map(|(_, meta)| meta.size).sum();
        let (step, mut done) = ("reading chunks", 0);
        for page in chunks.chunks(TOGETHER) {
            let asked = page
                .iter()
                .map(|(hash, meta)| super::get_chunk(self.client(), meta.location.clone(), *hash));
            for read in self.remote.wait_all(asked)? {
                report(read.map(drop), fault)?;
            }
            done += page.iter().map(|(_, meta)| meta.size).sum::<u64>();
            progress(Progress { step, done, total });
        }
        let manifests = self.list_manifests(fault)?;
        let total = manifests.iter().map(|listed| listed.size).sum();
        let (step, mut done) = ("reading manifests", 0);
        for listed in &manifests {
            report(self.read_manifest(&listed.path).map(drop), fault)?;
            done += listed.size;
            progress(Progress { step, done, total });
        }
        Ok(())
    }

    /// The cap is reached by evicting the manifests that were put longest ago; a chunk that only they referred
    /// to goes if it is older than the grace period.
    fn collect(
        &self,
        options: &CollectOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Collected, StoreError> {
        // Chunks before manifests: a chunk put from here on is not looked at.
        let chunks = self.list_chunks(&mut |_| {})?;
        let mut collected = Collected::default();
        let referred = self.keep(&chunks, options, &mut collected, progress)?;
        let young = |modified: SystemTime| {
            !options.grace.is_zero()
                && SystemTime::now()
                    .duration_since(modified)
                    .unwrap_or(Duration::ZERO)
                    < options.grace
        };
        let gone: Vec<_> = chunks
            .iter()
            .filter(|(hash, _)| !referred.contains(hash))
            .collect();
        for (at, (_, meta)) in gone.iter().enumerate() {
            // Once more, just before: somebody may have needed it since.
            let (client, path) = (self.client(), meta.location.clone());
            let now = self.remote.wait(async move { client.head(&path).await })?;
            let Some(now) = now else {
                continue;
            };
            if young(now.last_modified.into()) {
                collected.in_grace += 1;
                continue;
            }
            if !options.dry_run {
                let (client, path) = (self.client(), meta.location.clone());
                self.remote
                    .wait(async move { client.delete(&path).await })?;
            }
            collected.chunks += 1;
            collected.bytes += now.size;
            progress(Progress {
                step: "removing chunks",
                done: at as u64 + 1,
                total: gone.len() as u64,
            });
        }
        Ok(collected)
    }
}

impl S3Store {
    /// Evicts manifests down to the cap and answers which chunks the others refer to.
    fn keep(
        &self,
        chunks: &[(ChunkHash, ObjectMeta)],
        options: &CollectOptions,
        collected: &mut Collected,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<HashSet<ChunkHash>, StoreError> {
        let sizes: HashMap<ChunkHash, u64> = chunks
            .iter()
            .map(|(hash, meta)| (*hash, meta.size))
            .collect();
        let mut manifests = self.list_manifests(&mut |_| {})?;
        manifests.sort_by_key(|listed| std::cmp::Reverse(listed.modified));
        let total = manifests.len() as u64;
        let mut references = References::new(sizes.keys().copied());
        let mut referred = HashSet::new();
        let (mut held, mut over) = (0_u64, false);
        for (at, listed) in manifests.into_iter().enumerate() {
            let mut new = Vec::new();
            if !over {
                let bytes = match self.read_manifest(&listed.path) {
                    Ok(read) => read.map(|(_, bytes)| bytes).unwrap_or_default(),
                    // Also of one that is damaged: nobody knows what it refers to.
                    Err(error) => return Err(error),
                };
                references.scan(&bytes);
                new = references.take_new();
                let added = new.iter().filter_map(|hash| sizes.get(hash)).sum::<u64>();
                held = held.saturating_add(listed.size).saturating_add(added);
                over = options.cap.is_some_and(|cap| held > cap);
            }
            if over {
                if !options.dry_run {
                    let (client, path) = (self.client(), listed.path);
                    self.remote
                        .wait(async move { client.delete(&path).await })?;
                }
                collected.manifests += 1;
                collected.bytes += listed.size;
            } else {
                referred.extend(new);
            }
            progress(Progress {
                step: "reading manifests",
                done: at as u64 + 1,
                total,
            });
        }
        Ok(referred)
    }

    fn list(&self, below: &'static str) -> Result<Vec<ObjectMeta>, StoreError> {
        let (client, below) = (self.client(), keys::path(&self.root, &[below]));
        self.remote.wait(async move { client.list(&below).await })
    }

    fn list_chunks(
        &self,
        fault: &mut dyn FnMut(Fault),
    ) -> Result<Vec<(ChunkHash, ObjectMeta)>, StoreError> {
        let mut chunks = Vec::new();
        for meta in self.list(keys::CHUNKS)? {
            match meta.location.filename().and_then(keys::chunk_of) {
                Some(hash) => chunks.push((hash, meta)),
                None => stray(&meta.location, fault),
            }
        }
        Ok(chunks)
    }

    fn list_manifests(&self, fault: &mut dyn FnMut(Fault)) -> Result<Vec<Listed>, StoreError> {
        let mut manifests = Vec::new();
        for meta in self.list(keys::MANIFESTS)? {
            let name = match meta.location.filename().map(keys::name_of) {
                Some(NameOf::Whole(name)) => Some(name),
                Some(NameOf::Hashed) => None,
                Some(NameOf::Nothing) | None => {
                    stray(&meta.location, fault);
                    continue;
                }
            };
            manifests.push(Listed {
                path: meta.location,
                name,
                size: meta.size,
                modified: meta.last_modified.into(),
            });
        }
        Ok(manifests)
    }

    /// A manifest by its key: its whole name and its bytes.
    fn read_manifest(&self, path: &Path) -> Result<Option<(String, Bytes)>, StoreError> {
        let (client, path) = (self.client(), path.clone());
        let stored = {
            let path = path.clone();
            self.remote.wait(async move { client.get(&path).await })?
        };
        let Some(stored) = stored else {
            return Ok(None);
        };
        // The checksum covers the name, so the name that it says can be used to check it.
        let body = stored.get(HEADER..).unwrap_or_default();
        let (name, len) = keys::split_name(body)?;
        let name = name.to_owned();
        if keys::manifest(&self.root, &name) != path {
            return Err(StoreError::Damaged {
                what: format!("object {path}"),
                how: format!("it holds the manifest {name:?}"),
            });
        }
        let stored = Seal::Manifest(name.as_bytes()).open(stored)?;
        Ok(Some((name, stored.slice(len..))))
    }
}

fn stray(path: &Path, fault: &mut dyn FnMut(Fault)) {
    fault(Fault {
        what: format!("object {path}"),
        how: "its name is none that a store gives".into(),
    });
}

fn report(outcome: Result<(), StoreError>, fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError> {
    match outcome {
        Err(StoreError::Damaged { what, how }) => fault(Fault { what, how }),
        other => return other,
    }
    Ok(())
}
