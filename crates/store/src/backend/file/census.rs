//! A list of everything in the store: all packs, chunks and manifests, and which chunks each manifest refers to.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::format::manifest::{LONGEST, Manifest};
use super::format::pack::Entry;
use super::index::{Index, Pack, Place};
use super::{FileStore, paths};
use crate::backend::{Progress, References, is_leftover};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The contents of a store at one moment. Chunks, packs and manifests refer to each other by index into these lists.
#[derive(Debug)]
pub(super) struct Census {
    pub(super) chunks: Vec<ChunkCensus>,
    pub(super) packs: Vec<PackCensus>,
    pub(super) manifests: Vec<ManifestCensus>,
}

#[derive(Debug)]
pub(super) struct ChunkCensus {
    pub(super) hash: ChunkHash,
    /// The pack whose copy is read. Other copies are garbage.
    pub(super) pack: usize,
    /// The offset in that pack, since a pack can hold a chunk twice.
    pub(super) offset: u64,
    pub(super) references: u32,
}

#[derive(Debug)]
pub(super) struct PackCensus {
    pub(super) number: usize,
    pub(super) pack: Arc<Pack>,
    pub(super) modified: SystemTime,
    /// The pack's entries, each with the index of its chunk.
    pub(super) entries: Vec<(usize, Entry)>,
    /// Whether the pack holds a damaged copy of a chunk that has an intact copy elsewhere.
    pub(super) spoiled: bool,
    /// Chunks whose only copy is in this pack and is damaged. The pack cannot be rewritten while one of them stays.
    pub(super) damaged: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct ManifestCensus {
    pub(super) path: String,
    pub(super) modified: SystemTime,
    pub(super) len: u64,
    /// Whether it is removed once it is unused for the grace period.
    pub(super) leftover: bool,
    pub(super) chunks: Vec<u32>,
}

impl Census {
    /// Reads all manifests. The caller keeps others from publishing meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if a manifest cannot be read, since its references are then unknown.
    pub(super) fn take(store: &FileStore, progress: &mut dyn FnMut(Progress)) -> Result<Self, StoreError> {
        // A pack that another process has removed since the index was read is skipped, with its chunks.
        let mut packs = Vec::new();
        let mut number = HashMap::new();
        for pack in store.index.packs() {
            let path = pack.id.path();
            let stat = match store.disk.stat(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(StoreError::io(format!("look at {path}")))?,
            };
            number.insert(pack.id, packs.len());
            packs.push(PackCensus {
                number: packs.len(),
                pack,
                modified: stat.modified,
                entries: Vec::new(),
                spoiled: false,
                damaged: Vec::new(),
            });
        }
        let damaged = store.index.damaged_copies();
        let mut chunks: Vec<ChunkCensus> = Vec::new();
        for (hash, places) in store.index.chunks() {
            let mut known = None;
            for place in whole_first(&store.index, hash, places) {
                let Some(&pack) = number.get(&place.pack.id) else {
                    continue;
                };
                let chunk = *known.get_or_insert_with(|| {
                    chunks.push(ChunkCensus { hash, pack, offset: place.offset, references: 0 });
                    chunks.len() - 1
                });
                let entry = Entry { hash, offset: place.offset, len: place.len, checksum: place.checksum };
                packs[pack].entries.push((chunk, entry));
                if damaged.contains(&(place.pack.id, hash)) {
                    match chunks[chunk].pack == pack {
                        true => packs[pack].damaged.push(chunk),
                        false => packs[pack].spoiled = true,
                    }
                }
            }
        }
        for pack in &mut packs {
            pack.entries.sort_unstable_by_key(|(_, entry)| entry.offset);
        }
        let mut census = Self { chunks, packs, manifests: Vec::new() };
        census.read_manifests(store, progress)?;
        Ok(census)
    }

    fn read_manifests(&mut self, store: &FileStore, progress: &mut dyn FnMut(Progress)) -> Result<(), StoreError> {
        let hashes = self.chunks.iter().enumerate();
        let numbers: HashMap<ChunkHash, u32> = hashes.map(|(n, chunk)| (chunk.hash, n as u32)).collect();
        let references = References::new(numbers.keys().copied());
        store.each_manifest_path(progress, &mut |path| {
            let damaged = |how: String| StoreError::Damaged {
                what: path.to_owned(),
                how: format!("{how}; nothing can be collected before it is repaired or deleted"),
            };
            let read = store.open_manifest(path).and_then(|file| {
                let stat = file.stat()?;
                Ok((stat, file.read_all(LONGEST)?))
            });
            let (stat, bytes) = match read {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(damaged(error.to_string()));
                }
                other => other.map_err(StoreError::io(format!("read {path}")))?,
            };
            // An empty file takes the place of a manifest that is removed.
            if bytes.is_empty() {
                return Ok(());
            }
            let manifest = Manifest::decode(&bytes).map_err(|flaw| damaged(flaw.to_string()))?;
            if paths::manifest(manifest.name) != path {
                return Err(damaged(format!("it is that of {:?}", manifest.name)));
            }
            let mut chunks = Vec::new();
            let mut refer = |hash: &ChunkHash| chunks.extend(numbers.get(hash));
            manifest.references().for_each(|hash| refer(&hash));
            references.find(manifest.data, &mut refer);
            chunks.sort_unstable();
            chunks.dedup();
            for &chunk in &chunks {
                self.chunks[chunk as usize].references += 1;
            }
            self.manifests.push(ManifestCensus {
                path: path.to_owned(),
                modified: stat.modified,
                len: stat.len,
                leftover: is_leftover(manifest.name),
                chunks,
            });
            Ok(())
        })
    }
}

/// Orders the copies of a chunk so that an intact one comes first, because only the first is kept. There is more than
/// one if two handles saved it at once, or if it was damaged and put again.
fn whole_first(index: &Index, hash: ChunkHash, mut places: Vec<Place>) -> Vec<Place> {
    if places.len() > 1 {
        let whole = places.iter().position(|place| {
            let entry = Entry { hash, offset: place.offset, len: place.len, checksum: place.checksum };
            matches!(index.read_entry(&place.pack, &entry), Ok(Some(_)))
        });
        places.swap(0, whole.unwrap_or(0));
    }
    places
}
