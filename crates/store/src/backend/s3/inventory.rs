//! Listing, verifying and collecting.
//!
//! A listing shows the manifests under the handle's prefix, named as the handle names them. Chunks, usage and
//! collections cover the whole root. Times are those of the last put.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;

use super::remote::Client;
use super::{S3Store, keys};
use crate::backend::header::HEADER;
use crate::backend::kept::Kept;
use crate::backend::recorded::{FIXED, Recorded, references_len};
use crate::backend::{
    Backend, ChunkEntry, CollectOptions, Collected, Fault, Inventory, ManifestEntry, Progress, Usage, is_leftover,
};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::name::ManifestName;

const TOGETHER: usize = 64;

/// The maximum bytes of objects that are read together, unless a single one is longer. Redis has the same limit.
const READ_BYTES: u64 = 32 << 20;

impl Inventory for S3Store {
    /// Reads the beginning of each object, which holds the name and the lengths of what is in front of the data.
    fn manifests(&self, visit: &mut dyn FnMut(ManifestEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.each_beginning(&mut |listed, begins| {
            let (name, bytes) = match begins {
                Err(StoreError::Damaged { .. }) => return Ok(()),
                other => other?,
            };
            let Some(Ok(name)) = name.strip_prefix(&self.prefix).map(ManifestName::new) else {
                return Ok(());
            };
            let mut entry = ManifestEntry::new(name, bytes);
            entry.last_used = Some(listed.last_modified.into());
            visit(entry)
        })
    }

    /// Reads never count as uses here.
    fn peek_manifests(&self, names: &[ManifestName]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.get_manifests(names)
    }

    fn chunks(&self, visit: &mut dyn FnMut(ChunkEntry) -> Result<(), StoreError>) -> Result<(), StoreError> {
        for (hash, meta) in self.list_chunks(&mut |_| {})? {
            let mut entry = ChunkEntry::new(hash, meta.size.saturating_sub(HEADER as u64));
            entry.last_used = Some(meta.last_modified.into());
            visit(entry)?;
        }
        Ok(())
    }

    fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        self.each_beginning(&mut |listed, begins| {
            usage.manifests += 1;
            // A damaged manifest counts with the length of its object.
            let bytes = begins.map_or(listed.size, |(_, bytes)| bytes);
            usage.manifest_bytes = usage.manifest_bytes.saturating_add(bytes);
            usage.total_bytes = usage.total_bytes.saturating_add(listed.size);
            Ok(())
        })?;
        for (_, meta) in self.list_chunks(&mut |_| {})? {
            usage.chunks += 1;
            let bytes = meta.size.saturating_sub(HEADER as u64);
            usage.chunk_bytes = usage.chunk_bytes.saturating_add(bytes);
            usage.total_bytes = usage.total_bytes.saturating_add(meta.size);
        }
        Ok(usage)
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress), fault: &mut dyn FnMut(Fault)) -> Result<(), StoreError> {
        let chunks = self.list_chunks(fault)?;
        let total = sum(chunks.iter().map(|(_, meta)| meta.size));
        let (step, mut done) = ("reading chunks", 0);
        for page in pages(&chunks, |(_, meta)| meta.size) {
            let asked = page.iter().map(|(hash, meta)| {
                let read = super::store::get_chunk(self.client(), meta.location.clone(), *hash);
                // Drop the bytes inside the future, so that not all of them are in memory at once.
                async move { read.await.map(drop) }
            });
            for read in self.remote.wait_all(asked)? {
                report(read, fault)?;
            }
            done = sum([done].into_iter().chain(page.iter().map(|(_, meta)| meta.size)));
            progress(Progress { step, done, total });
        }
        let there: HashSet<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
        let mut missing: HashMap<ChunkHash, Path> = HashMap::new();
        let manifests = self.list_manifests(fault)?;
        let total = sum(manifests.iter().map(|listed| listed.size));
        let (step, mut done) = ("reading manifests", 0);
        for page in pages(&manifests, |listed| listed.size) {
            for (listed, read) in page.iter().zip(self.read_manifests(page)?) {
                let read = report(read, fault)?.flatten();
                let needed = read.iter().flat_map(|(_, recorded)| recorded.references());
                let needed = needed.filter(|hash| !there.contains(hash));
                missing.extend(needed.map(|hash| (hash, listed.location.clone())));
            }
            done = sum([done].into_iter().chain(page.iter().map(|listed| listed.size)));
            progress(Progress { step, done, total });
        }
        for (hash, manifest) in missing {
            // The chunk may have been put, or the manifest removed, meanwhile.
            let (client, path) = (self.client(), keys::chunk(&self.root, &hash));
            let chunk = self.remote.wait(async move { client.head(&path).await })?;
            let reading = read_manifest(self.client(), self.root.clone(), manifest);
            if chunk.is_none()
                && let Some((name, recorded)) = self.remote.wait(reading)?
                && recorded.references().any(|needed| needed == hash)
            {
                fault(Fault::missing(&hash, &name));
            }
        }
        Ok(())
    }

    /// A cap is reached by evicting the manifests that were put longest ago. A chunk that only they referred to is
    /// removed if it is older than the grace period.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if the grace period is shorter than twice [`S3Options::refresh`], because a save may
    /// rely on chunks of that age. Zero is allowed, for a store that is not in use.
    ///
    /// [`S3Options::refresh`]: super::S3Options::refresh
    fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(Progress)) -> Result<Collected, StoreError> {
        let least = self.options.refresh.saturating_mul(2);
        if !options.grace.is_zero() && options.grace < least {
            return Err(StoreError::Unsupported {
                what: "collecting with so short a grace period",
                why: format!(
                    "saves rely on chunks of S3 that were put up to {} minutes ago: make it longer than \
                     that, or 0 if no process uses the store",
                    least.as_secs().div_ceil(60)
                ),
            });
        }
        // Ages count from this moment, however long the collection takes. A save that finds a chunk later relies on its
        // age at that time, and the collection no longer sees its manifest.
        let began = SystemTime::now();
        // List chunks before manifests: a chunk that is put later is not considered at all.
        let chunks = self.list_chunks(&mut |_| {})?;
        let mut collected = Collected::default();
        let kept = self.keep(&chunks, options, began, &mut collected, progress)?;
        let gone: Vec<_> = chunks.iter().filter(|(hash, _)| !kept.refers(hash)).collect();
        let (step, total) = ("removing chunks", gone.len() as u64);
        for (at, page) in gone.chunks(TOGETHER).enumerate() {
            let asked = page.iter().map(|(_, meta)| {
                let (client, path) = (self.client(), meta.location.clone());
                remove(client, path, began, options.grace, options.dry_run)
            });
            for fate in self.remote.wait_all(asked)? {
                match fate? {
                    Fate::Absent => {}
                    Fate::Young => collected.in_grace += 1,
                    Fate::Removed(bytes) => {
                        collected.chunks += 1;
                        collected.bytes = collected.bytes.saturating_add(bytes);
                    }
                }
            }
            let done = (at * TOGETHER + page.len()) as u64;
            progress(Progress { step, done, total });
        }
        if !options.dry_run {
            self.sweep(began, options.grace)?;
        }
        Ok(collected)
    }
}

type Begins = Result<(String, u64), StoreError>;

#[derive(Clone, Copy, Debug)]
enum Fate {
    Absent,
    /// It stays because of its grace period.
    Young,
    /// It was removed, or would be. The field is its length in bytes.
    Removed(u64),
}

/// Removes a chunk that was older than the grace period when the collection began. The age is the difference of the
/// store's clock and ours. If the store's clock is behind, chunks seem older than they are, and the grace period has to
/// cover that too.
async fn remove(
    client: Arc<Client>,
    path: Path,
    began: SystemTime,
    grace: Duration,
    dry_run: bool,
) -> Result<Fate, StoreError> {
    // Look again just before removing: a save may have refreshed the chunk since it was listed.
    let Some(now) = client.head(&path).await? else {
        return Ok(Fate::Absent);
    };
    if !is_older(&now, began, grace) {
        return Ok(Fate::Young);
    }
    if !dry_run {
        client.delete(&path).await?;
    }
    Ok(Fate::Removed(now.size))
}

fn is_older(object: &ObjectMeta, began: SystemTime, grace: Duration) -> bool {
    // An object that was written later has a negative age, which counts as zero.
    let age = began.duration_since(object.last_modified.into());
    grace.is_zero() || age.unwrap_or(Duration::ZERO) >= grace
}

/// Reads a manifest by its key. Returns its full name and its record.
async fn read_manifest(
    client: Arc<Client>,
    root: Vec<String>,
    path: Path,
) -> Result<Option<(String, Recorded)>, StoreError> {
    let stored = client.get(&path).await?;
    let Some(stored) = stored.filter(|stored| !stored.is_empty()) else {
        return Ok(None);
    };
    // The checksum covers the name, so the stored name can be used to check it.
    let name = name_in(&root, &path, &stored)?;
    let recorded = super::store::open_manifest(&name, stored)?;
    Ok(Some((name, recorded)))
}

fn name_in(root: &[String], path: &Path, beginning: &[u8]) -> Result<String, StoreError> {
    let body = beginning.get(HEADER..).unwrap_or_default();
    let (name, _) = keys::split_name(body)?;
    if keys::manifest(root, name) != *path {
        return Err(StoreError::Damaged {
            what: format!("object {path}"),
            how: format!("it holds the manifest {name:?}"),
        });
    }
    Ok(name.to_owned())
}

impl S3Store {
    /// Evicts manifests down to the cap, and returns what the others refer to.
    fn keep(
        &self,
        chunks: &[(ChunkHash, ObjectMeta)],
        options: &CollectOptions,
        began: SystemTime,
        collected: &mut Collected,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Kept, StoreError> {
        let sizes = chunks.iter().map(|(hash, meta)| (*hash, meta.size));
        let mut kept = Kept::new(sizes, options.cap);
        let mut manifests = self.list_manifests(&mut |_| {})?;
        manifests.sort_by_key(|listed| std::cmp::Reverse(listed.last_modified));
        let (step, total) = ("reading manifests", manifests.len() as u64);
        let mut at = 0;
        let mut leftovers = Vec::new();
        // Keep the most recently put ones, as long as they fit.
        'fit: for page in pages(&manifests, |listed| listed.size) {
            for (listed, read) in page.iter().zip(self.read_manifests(page)?) {
                // A damaged manifest is an error, because its references are unknown.
                match read? {
                    Some((name, _)) if is_leftover(&name) && is_older(listed, began, options.grace) => {
                        leftovers.push(listed.clone());
                    }
                    Some((_, recorded)) if !kept.keep(&recorded, listed.size, false) => break 'fit,
                    _ => {}
                }
                at += 1;
                let done = at as u64;
                progress(Progress { step, done, total });
            }
        }
        // Evict the first that does not fit, and all older ones.
        let evicted = &manifests[at..];
        let gone = leftovers.chunks(TOGETHER).map(|page| (page, true));
        let gone = gone.chain(evicted.chunks(TOGETHER).map(|page| (page, false)));
        for (page, leftover) in gone {
            let evicted = page.iter().map(|listed| {
                let (client, listed, dry_run) = (self.client(), listed.clone(), options.dry_run);
                async move { Ok(dry_run || client.delete_unchanged(&listed).await?) }
            });
            let mut changed = Vec::new();
            for (listed, gone) in page.iter().zip(self.remote.wait_all(evicted)?) {
                if gone? {
                    match leftover {
                        true => collected.leftovers += 1,
                        false => collected.manifests += 1,
                    }
                    collected.bytes = collected.bytes.saturating_add(listed.size);
                } else {
                    changed.push(listed.clone());
                }
            }
            // These were put again meanwhile, so they stay.
            for (listed, read) in changed.iter().zip(self.read_manifests(&changed)?) {
                if let Some((_, recorded)) = read? {
                    kept.keep(&recorded, listed.size, true);
                }
            }
            at += if leftover { 0 } else { page.len() };
            let done = at as u64;
            progress(Progress { step, done, total });
        }
        Ok(kept)
    }

    /// Calls `visit` with the listing and the beginning of each manifest.
    fn each_beginning(
        &self,
        visit: &mut dyn FnMut(&ObjectMeta, Begins) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for page in self.list_manifests(&mut |_| {})?.chunks(TOGETHER) {
            let asked = page.iter().map(|listed| {
                let (client, path) = (self.client(), listed.location.clone());
                async move { client.beginning(&path, keys::BEGINNING).await }
            });
            for (listed, read) in page.iter().zip(self.remote.wait_all(asked)?) {
                let Some(read) = read? else {
                    continue;
                };
                let name = name_in(&self.root, &listed.location, &read);
                let begins = name.map(|name| {
                    let front = HEADER + keys::front(&name).len();
                    let references = read.get(front..).and_then(references_len).unwrap_or(0);
                    let front = ((front + FIXED) as u64).saturating_add(references);
                    (name, listed.size.saturating_sub(front))
                });
                visit(listed, begins)?;
            }
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "each by itself may be gone or damaged")]
    fn read_manifests(
        &self,
        listed: &[ObjectMeta],
    ) -> Result<Vec<Result<Option<(String, Recorded)>, StoreError>>, StoreError> {
        let asked =
            listed.iter().map(|listed| read_manifest(self.client(), self.root.clone(), listed.location.clone()));
        self.remote.wait_all(asked)
    }

    fn list(&self, below: &'static str) -> Result<Vec<ObjectMeta>, StoreError> {
        let (client, below) = (self.client(), keys::path(&self.root, &[below]));
        self.remote.wait(async move { client.list(&below).await })
    }

    fn list_chunks(&self, fault: &mut dyn FnMut(Fault)) -> Result<Vec<(ChunkHash, ObjectMeta)>, StoreError> {
        let mut chunks = Vec::new();
        for meta in self.list(keys::CHUNKS)? {
            match meta.location.filename().and_then(keys::chunk_of) {
                Some(hash) => chunks.push((hash, meta)),
                None => stray(&meta.location, fault),
            }
        }
        Ok(chunks)
    }

    /// Deletes the empty objects that conditional removals left. A manifest that is put between the look-up and the
    /// delete is lost, since no delete has a condition.
    fn sweep(&self, began: SystemTime, grace: Duration) -> Result<(), StoreError> {
        let mut empty = self.list(keys::MANIFESTS)?;
        empty.retain(|meta| meta.size == 0);
        for page in empty.chunks(TOGETHER) {
            let asked = page.iter().map(|meta| {
                let (client, path) = (self.client(), meta.location.clone());
                async move {
                    match client.head(&path).await? {
                        Some(now) if now.size == 0 && is_older(&now, began, grace) => client.delete(&path).await,
                        _ => Ok(()),
                    }
                }
            });
            self.remote.wait_all(asked)?.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    fn list_manifests(&self, fault: &mut dyn FnMut(Fault)) -> Result<Vec<ObjectMeta>, StoreError> {
        let mut manifests = self.list(keys::MANIFESTS)?;
        manifests.retain(|meta| {
            let ours = meta.location.filename().is_some_and(keys::is_manifest);
            if !ours {
                stray(&meta.location, fault);
            }
            // An empty object stands for a removed manifest.
            ours && meta.size > 0
        });
        Ok(manifests)
    }
}

/// Returns a saturating sum, so that no sizes that a server lists can overflow.
fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Splits objects, in order, into pages that are read together.
fn pages<T>(all: &[T], size: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    let mut left = all;
    std::iter::from_fn(move || {
        let mut bytes = 0_u64;
        let fit = left.iter().take(TOGETHER).take_while(|object| {
            bytes = bytes.saturating_add(size(object));
            bytes <= READ_BYTES
        });
        let (page, rest) = left.split_at_checked(fit.count().max(1))?;
        left = rest;
        Some(page)
    })
}

fn stray(path: &Path, fault: &mut dyn FnMut(Fault)) {
    fault(Fault { what: format!("object {path}"), how: "its name is none that a store gives".into() });
}

fn report<T>(outcome: Result<T, StoreError>, fault: &mut dyn FnMut(Fault)) -> Result<Option<T>, StoreError> {
    match outcome {
        Err(StoreError::Damaged { what, how }) => {
            fault(Fault { what, how });
            Ok(None)
        }
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_by_bytes_and_by_number() {
        let lens = |sizes: &[u64]| -> Vec<usize> { pages(sizes, |size| *size).map(<[u64]>::len).collect() };
        let half = READ_BYTES / 2;
        assert_eq!(lens(&[]), [0; 0]);
        assert_eq!(lens(&[half, half, 1, u64::MAX, u64::MAX, 1]), [2, 1, 1, 1, 1]);
        assert_eq!(lens(&[1; 2 * TOGETHER + 1]), [TOGETHER, TOGETHER, 1]);
    }
}
