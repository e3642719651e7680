//! The index in memory: the pack and offset of each chunk, read from the packs' own indices.
//!
//! Other processes add and remove packs. Afterwards they write a new random number into the file `generation`. So one
//! read of 16 bytes tells whether the folders have to be listed again, and then only the indices of new packs are read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::disk::{Disk, File, How, is_bad_block, open_to_lock};
use super::files::Files;
use super::format::manifest::Manifest;
use super::format::pack::{Entry, TRAILER, Trailer};
use super::format::{checksum, once, twice};
use super::paths::{self, PackId};
use crate::backend::references::{KEY, Starts};
use crate::error::StoreError;
use crate::hash::ChunkHash;

/// The number of attempts to read a chunk whose pack vanishes each time. Each failure means that a collection has moved
/// the chunk in between, which takes milliseconds at least.
const TRIES: usize = 1000;

/// The error text for a bad block of the disk. It is damage like any other: another copy may be intact, and so may the
/// rest of the file.
const BAD_BLOCK: &str = "the disk cannot read its bytes";

/// The published chunks of a store, as one handle knows them.
#[derive(Debug)]
pub(super) struct Index {
    disk: Arc<dyn Disk>,
    generation: Box<dyn File>,
    state: RwLock<State>,
    /// Lets one thread list at a time.
    listing: Mutex<()>,
    files: Files,
}

#[derive(Debug)]
pub(super) struct Pack {
    pub(super) id: PackId,
    pub(super) len: u64,
    /// Whether its entry in its folder is known to be durable. Manifests must not rely on a pack that is not settled.
    settled: AtomicBool,
    /// The second in which this handle last updated the pack's last-used time.
    touched: AtomicU64,
}

#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) pack: Arc<Pack>,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) checksum: u32,
}

#[derive(Debug, Default)]
struct State {
    stamp: Option<[u8; 16]>,
    packs: HashMap<PackId, Arc<Pack>>,
    /// Packs whose index cannot be read, with the reason.
    damaged: BTreeMap<PackId, String>,
    /// Packs of this handle whose publication failed, so that they may not be durable.
    distrusted: HashSet<PackId>,
    chunks: HashMap<ChunkHash, Place>,
    /// Additional copies, made by concurrent saves.
    copies: HashMap<ChunkHash, Vec<Place>>,
    /// Copies that failed their checksum. Manifests must not rely on them: a chunk without another copy is stored again
    /// when it is put again.
    damaged_copies: HashSet<(PackId, ChunkHash)>,
    starts: Starts,
    /// The lengths of hashes that have at least [`KEY`] bytes.
    lengths: BTreeSet<usize>,
}

enum Opened {
    Pack(Pack, Vec<Entry>),
    Damaged(String),
    Gone,
}

impl Index {
    pub(super) fn open(disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let generation =
            open_to_lock(&*disk, paths::GENERATION).map_err(StoreError::io(format!("open {}", paths::GENERATION)))?;
        let this = Self {
            files: Files::new(disk.clone()),
            disk,
            generation,
            state: RwLock::default(),
            listing: Mutex::default(),
        };
        this.refresh(true)?;
        Ok(this)
    }

    pub(super) fn get(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        self.close_gone();
        for _ in 0..TRIES {
            let mut gone = false;
            let mut damage = None;
            for place in self.places(hash) {
                match self.read(hash, &place) {
                    Ok(Some(bytes)) => {
                        self.used(&place.pack);
                        return Ok(Some(bytes));
                    }
                    Ok(None) => gone = true,
                    Err(error @ StoreError::Damaged { .. }) => {
                        if self.note_damage(&place.pack, hash) {
                            let _ = self.announce();
                        }
                        damage = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if self.refresh(gone)? {
                continue;
            }
            return match damage {
                Some(damage) => Err(damage),
                None => self.missing(hash),
            };
        }
        Err(StoreError::Io {
            action: format!("read chunk {hash}"),
            source: io::Error::other("it was moved again each time it was looked for"),
        })
    }

    pub(super) fn will_need(&self, hashes: &[ChunkHash]) {
        for hash in hashes {
            if let Some(place) = self.places(hash).first()
                && let Ok(file) = self.files.get(&place.pack.id)
            {
                file.will_need(place.offset, place.len);
            }
        }
    }

    /// Returns the pack of a chunk that a manifest may rely on: it is durable, and the copy is not known to be damaged.
    pub(super) fn reliable(&self, hash: &ChunkHash) -> Option<Arc<Pack>> {
        let state = self.read_state();
        let whole = |place: &&Place| !state.is_damaged(hash, place);
        let mut packs: Vec<_> = Vec::new();
        for place in state.places(hash).filter(whole) {
            if place.pack.is_settled() {
                return Some(place.pack.clone());
            }
            packs.push(place.pack.clone());
        }
        drop(state);
        packs.into_iter().find(|pack| self.exists(pack).is_ok_and(|there| there) && pack.is_settled())
    }

    /// Remembers that this copy of a chunk is damaged, in the store too if it is writable, so that the next put stores
    /// the chunk again. Returns whether the note is new and has to be announced.
    pub(super) fn note_damage(&self, pack: &Pack, hash: &ChunkHash) -> bool {
        let news = self.write().damaged_copies.insert((pack.id, *hash));
        news && self.disk.open(&pack.id.note(hash), How::Create).is_ok()
    }

    pub(super) fn damaged_copies(&self) -> HashSet<(PackId, ChunkHash)> {
        self.read_state().damaged_copies.clone()
    }

    /// Closes packs that have been removed, because an open file keeps its disk space. Does nothing if no pack was
    /// added or removed since the last call.
    pub(super) fn close_gone(&self) {
        if let Ok(stamp) = self.stamp() {
            self.files.close_gone(stamp);
        }
    }

    /// Tells whether the file of a pack still exists, and updates whether it is settled.
    pub(super) fn exists(&self, pack: &Pack) -> io::Result<bool> {
        match self.disk.stat(&pack.id.path()) {
            Ok(stat) => {
                pack.settled.fetch_or(stat.settled, Ordering::AcqRel);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Updates a pack's last-used time on the disk, at most once a second.
    pub(super) fn used(&self, pack: &Pack) {
        let now = self.disk.now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        if pack.touched.swap(second, Ordering::Relaxed) != second
            && let Ok(file) = self.files.get(&pack.id)
        {
            // This fails if the file belongs to another user. Then the pack looks older than it is.
            let _ = file.touch(now);
        }
    }

    pub(super) fn add(&self, id: PackId, len: u64, entries: &[Entry]) {
        let pack = Pack { id, len, settled: true.into(), touched: 0.into() };
        self.write().add(pack, entries);
    }

    /// Excludes a pack for as long as the handle is open, even if the pack changes on the disk.
    pub(super) fn distrust(&self, id: PackId) {
        self.write().distrusted.insert(id);
    }

    pub(super) fn announce(&self) -> Result<(), StoreError> {
        let announced = paths::random().and_then(|stamp| {
            let stamp = twice(u64::from_le_bytes(stamp));
            self.generation.write_all_at(&stamp, 0)
        });
        if announced.is_err() {
            // Other handles do not learn of the change. Make this one list again: packs that it removed may still be in
            // its index.
            self.write().stamp = None;
        }
        announced.map_err(StoreError::io(format!("write {}", paths::GENERATION)))
    }

    /// Lists the packs again if they have changed, or if `force` is set. Returns whether the index may have changed.
    pub(super) fn refresh(&self, force: bool) -> Result<bool, StoreError> {
        let failed = |action: &str| StoreError::io(action.to_owned());
        // Read the number before listing: a change during the listing then makes the next call list again.
        let stamp = self.stamp().map_err(failed("read generation"))?;
        if !force && self.read_state().stamp == Some(stamp) {
            return Ok(false);
        }
        let _one = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.stamp().map_err(failed("read generation"))?;
        if !force && self.read_state().stamp == Some(stamp) {
            return Ok(true);
        }
        let (mut found, mut notes) = (HashSet::new(), Vec::new());
        for folder in paths::pack_folders() {
            let names = self.disk.list(&folder);
            let names = names.map_err(failed(&format!("list {folder}")))?;
            found.extend(names.iter().filter_map(|n| PackId::of_file(&folder, n)));
            notes.extend(names.iter().filter_map(|n| PackId::of_note(&folder, n)));
        }
        let mut news = Vec::new();
        {
            let state = self.read_state();
            found.retain(|id| !state.distrusted.contains(id));
            news.extend(found.iter().filter(|id| !state.packs.contains_key(id)));
        }
        let mut opened = Vec::with_capacity(news.len());
        for id in news {
            let pack = self.open_pack(id);
            opened.push((id, pack.map_err(failed(&format!("read {}", id.path())))?));
        }
        let mut state = self.write();
        state.remove(&found);
        self.files.keep(|id| state.packs.contains_key(id));
        state.damaged.clear();
        state.damaged_copies.extend(notes);
        for (id, opened) in opened {
            match opened {
                Opened::Pack(pack, entries) => state.add(pack, &entries),
                Opened::Damaged(how) => drop(state.damaged.insert(id, how)),
                Opened::Gone => {}
            }
        }
        state.stamp = Some(stamp);
        Ok(true)
    }

    /// Returns all chunks with all their copies, the preferred one first.
    pub(super) fn chunks(&self) -> Vec<(ChunkHash, Vec<Place>)> {
        let state = self.read_state();
        let chunks = state.chunks.iter();
        chunks
            .map(|(hash, first)| {
                let copies = state.copies.get(hash).into_iter().flatten();
                (*hash, [first].into_iter().chain(copies).cloned().collect())
            })
            .collect()
    }

    pub(super) fn packs(&self) -> Vec<Arc<Pack>> {
        self.read_state().packs.values().cloned().collect()
    }

    pub(super) fn damaged(&self) -> Vec<(PackId, String)> {
        let damaged = &self.read_state().damaged;
        damaged.iter().map(|(id, how)| (*id, how.clone())).collect()
    }

    /// Returns the packs of all chunks, with all copies, in a manifest's recorded references or in its data.
    pub(super) fn packs_of(&self, manifest: &Manifest<'_>) -> Vec<Arc<Pack>> {
        let state = self.read_state();
        let mut packs = HashMap::new();
        let mut add = |hash: &ChunkHash| {
            for place in state.places(hash) {
                packs.entry(place.pack.id).or_insert(&place.pack);
            }
        };
        manifest.references().for_each(|hash| add(&hash));
        state.starts.find(manifest.data, &mut |start, rest| {
            if start.len() < KEY {
                ChunkHash::new(start).iter().for_each(&mut add);
                return;
            }
            for &len in &state.lengths {
                let hash = rest.get(..len).map(ChunkHash::new);
                hash.into_iter().flatten().for_each(|hash| add(&hash));
            }
        });
        packs.into_values().cloned().collect()
    }

    pub(super) fn places(&self, hash: &ChunkHash) -> Vec<Place> {
        self.read_state().places(hash).cloned().collect()
    }

    fn read(&self, hash: &ChunkHash, place: &Place) -> Result<Option<Bytes>, StoreError> {
        let entry = Entry { hash: *hash, offset: place.offset, len: place.len, checksum: place.checksum };
        self.read_entry(&place.pack, &entry)
    }

    /// Returns the bytes of a chunk in this pack, or `None` if the pack has been removed.
    pub(super) fn read_entry(&self, pack: &Pack, entry: &Entry) -> Result<Option<Bytes>, StoreError> {
        let damaged = |how: &str| StoreError::Damaged {
            what: format!("chunk {}", entry.hash),
            how: format!("{how} in {}", pack.id.path()),
        };
        let failed = || StoreError::io(format!("read {}", pack.id.path()));
        let file = match self.files.get(&pack.id) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(damaged("there is no regular file"));
            }
            Err(error) if is_bad_block(&error) => return Err(damaged(BAD_BLOCK)),
            Err(error) => return Err(failed()(error)),
        };
        match file.read_vec_at(entry.len, entry.offset) {
            Ok(bytes) if checksum(&bytes) == entry.checksum => Ok(Some(bytes.into())),
            Ok(_) => Err(damaged("its bytes fail their checksum")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged("its bytes are cut off")),
            Err(error) if is_bad_block(&error) => Err(damaged(BAD_BLOCK)),
            Err(error) => Err(failed()(error)),
        }
    }

    /// A chunk that is not in the index is an error if any pack cannot be read, since that pack may hold it.
    fn missing(&self, hash: &ChunkHash) -> Result<Option<Bytes>, StoreError> {
        match self.damaged().first() {
            None => Ok(None),
            Some((id, how)) => Err(StoreError::Damaged {
                what: id.path(),
                how: format!("{how}, so it is unknown whether it holds chunk {hash}"),
            }),
        }
    }

    fn open_pack(&self, id: PackId) -> io::Result<Opened> {
        let path = id.path();
        let file = match self.disk.open(&path, How::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Opened::Gone),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(Opened::Damaged(error.to_string()));
            }
            other => other?,
        };
        let stat = file.stat()?;
        match read_index(&*file, stat.len) {
            Ok(entries) => {
                Ok(Opened::Pack(Pack { id, len: stat.len, settled: stat.settled.into(), touched: 0.into() }, entries))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Opened::Damaged(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Ok(Opened::Damaged("it is cut off".to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the number of the last change. A damaged number is harmless: it only makes the handle list again. A
    /// truncated one counts as zeros, which are never written.
    fn stamp(&self) -> io::Result<[u8; 16]> {
        let mut stamp = [0; 16];
        match self.generation.read_exact_at(&mut stamp, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok([0; 16]),
            other => other.map(|()| stamp),
        }
    }

    pub(super) fn generation_is_whole(&self) -> bool {
        self.stamp().is_ok_and(|stamp| once(stamp).is_some())
    }

    fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pack {
    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }
}

impl State {
    fn add(&mut self, pack: Pack, entries: &[Entry]) {
        let pack = Arc::new(pack);
        if self.packs.insert(pack.id, pack.clone()).is_some() {
            return;
        }
        for entry in entries {
            let place = Place { pack: pack.clone(), offset: entry.offset, len: entry.len, checksum: entry.checksum };
            self.starts.insert(&entry.hash);
            if entry.hash.as_bytes().len() >= KEY {
                self.lengths.insert(entry.hash.as_bytes().len());
            }
            let whole = !self.is_damaged(&entry.hash, &place);
            match self.chunks.entry(entry.hash) {
                std::collections::hash_map::Entry::Vacant(vacant) => drop(vacant.insert(place)),
                std::collections::hash_map::Entry::Occupied(mut first) => {
                    // Prefer a durable copy, and an intact one to a damaged one.
                    let before = first.get();
                    let better = self.damaged_copies.contains(&(before.pack.id, entry.hash))
                        || pack.is_settled() && !before.pack.is_settled();
                    let better = better && whole;
                    let other = if better { first.insert(place) } else { place };
                    self.copies.entry(entry.hash).or_default().push(other);
                }
            }
        }
    }

    fn places(&self, hash: &ChunkHash) -> impl Iterator<Item = &Place> {
        let copies = self.copies.get(hash).into_iter().flatten();
        self.chunks.get(hash).into_iter().chain(copies)
    }

    fn is_damaged(&self, hash: &ChunkHash, place: &Place) -> bool {
        !self.damaged_copies.is_empty() && self.damaged_copies.contains(&(place.pack.id, *hash))
    }

    fn remove(&mut self, found: &HashSet<PackId>) {
        self.damaged_copies.retain(|(id, _)| found.contains(id));
        let before = self.packs.len();
        self.packs.retain(|id, _| found.contains(id));
        if self.packs.len() == before {
            return;
        }
        let Self { chunks, copies, .. } = self;
        copies.retain(|_, places| {
            places.retain(|place| found.contains(&place.pack.id));
            !places.is_empty()
        });
        chunks.retain(|hash, place| {
            if found.contains(&place.pack.id) {
                return true;
            }
            let other = copies.get_mut(hash).and_then(Vec::pop);
            match other {
                Some(other) => {
                    *place = other;
                    true
                }
                None => false,
            }
        });
        copies.retain(|_, places| !places.is_empty());
    }
}

/// # Errors
/// `InvalidData` if the file has no valid index.
fn read_index(file: &dyn File, len: u64) -> io::Result<Vec<Entry>> {
    let flawed = |flaw| io::Error::new(io::ErrorKind::InvalidData, flaw);
    let at = len.checked_sub(TRAILER as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut trailer = [0; TRAILER];
    file.read_exact_at(&mut trailer, at)?;
    let trailer = Trailer::decode(&trailer, len).map_err(flawed)?;
    let index = file.read_vec_at(trailer.index_len, trailer.data_len)?;
    trailer.decode_index(&index).map_err(flawed)
}
