//! Publishing: makes what was put readable for every process, and durable.
//!
//! Each step makes durable what the next one needs:
//!
//! 1. The pack gets its index, is flushed and moved to its place. Its folder is flushed.
//! 2. The other processes are told of the pack, and its mode marks it as durable.
//! 3. The manifest is written to a temporary file, flushed and moved to its place. Its folder is flushed. Several
//!    manifests take each step together.
//!
//! No manifest refers to the pack before step 1 is complete, so what a crash leaves of it is garbage. Step 3 moves a
//! manifest only after everything it needs is durable, so a visible manifest is always complete.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::disk::{File, How, is_full};
use super::format::{manifest, pack};
use super::locks::Held;
use super::paths::{self, PackId};
use super::pending::{Batch, OpenPack, create_temporary};
use super::store::{FileRevision, FileStore};
use crate::backend::{Revision, references};
use crate::error::StoreError;
use crate::hash::ChunkHash;
use crate::work::on_threads;

/// The maximum number of manifests that are written before they are moved to their places. Each has an open file, of
/// the 1,024 that a process may have by default. It is small in unit tests, so that crashes and faults hit every step.
const TOGETHER: usize = if cfg!(test) { 3 } else { 256 };

struct Draft {
    path: String,
    target: String,
    file: Box<dyn File>,
}

impl FileStore {
    /// Publishes everything put so far, and then these manifests. The names include the handle's prefix.
    pub(super) fn publish(&self, manifests: &[(String, &[u8])]) -> Result<(), StoreError> {
        let _turn = self.publishing.take(self.locks.timeout())?;
        if self.is_published(manifests)? {
            return Ok(());
        }
        let lost = self.pending.lost();
        if !lost.is_empty() {
            let lost = references::References::new(lost);
            let mut named = None;
            for (_, data) in manifests {
                lost.find(data, &mut |hash| named = Some(*hash));
            }
            if let Some(hash) = named {
                return Err(StoreError::Collected { hash });
            }
        }
        let mut batch = self.pending.take();
        if batch.entries.is_empty()
            && let Some(empty) = batch.pack.take()
        {
            // All its chunks failed, so remove the empty file.
            let _ = self.space.remove(&empty.path);
        }
        let published = self.publish_batch(&batch, manifests);
        match &published {
            Ok(()) => self.pending.done(),
            Err(StoreError::Collected { hash }) => self.pending.not_referred(Some(hash)),
            Err(_) => self.pending.not_referred(None),
        }
        published
    }

    /// Tells whether these manifests are stored, durable, and refer to everything put since the last one. So saving the
    /// same content again costs a read and no flush.
    fn is_published(&self, manifests: &[(String, &[u8])]) -> Result<bool, StoreError> {
        let Some(references) = self.pending.idle() else {
            return Ok(false);
        };
        // Keep others from evicting one of them as unused during this check.
        let _held = self.locks.publishing()?;
        for (n, (name, data)) in manifests.iter().enumerate() {
            // The first manifest of a batch records its references.
            let wanted = if n == 0 { &references[..] } else { &[] };
            let there = self.look_at_manifest(name, |file, there| {
                let mut have = there.references();
                there.data == *data
                    && wanted.iter().all(|hash| have.any(|other| other == *hash))
                    && self.is_noted(&*file)
            });
            // A damaged manifest is replaced.
            if !matches!(there, Ok(Some(true))) {
                return Ok(false);
            }
        }
        if manifests.is_empty() {
            return Ok(references.is_empty());
        }
        self.pending.referred(&references);
        Ok(true)
    }

    /// Tells whether a manifest's file is durable and its modification time could be advanced. If not, it is put again,
    /// because [`remove_revision`](Self::remove_revision) would not notice this put.
    fn is_noted(&self, file: &dyn File) -> bool {
        let noted = file.stat().and_then(|stat| {
            let later = stat.modified + Duration::from_nanos(1);
            file.touch(self.disk.now().max(later))?;
            Ok(stat.settled)
        });
        noted.unwrap_or(false)
    }

    fn publish_batch(&self, batch: &Batch, manifests: &[(String, &[u8])]) -> Result<(), StoreError> {
        let held = match &batch.pack {
            Some(pack) => self.publish_pack(pack, batch).inspect_err(|_| self.abandon(pack, batch))?,
            None => self.locks.publishing()?,
        };
        let mut held = Some(held);
        // The first manifest of a batch records its references.
        let mut references = &batch.references[..];
        let mut portions = manifests.chunks(TOGETHER).peekable();
        while let Some(now) = portions.next() {
            let mut drafts = Vec::with_capacity(now.len());
            let drafted = now.iter().try_for_each(|manifest| {
                let references = std::mem::take(&mut references);
                drafts.push(self.draft(manifest, references, &mut held)?);
                Ok(())
            });
            let published = drafted
                .and_then(|()| {
                    self.flush(&drafts, |draft| {
                        let failed = StoreError::io(format!("flush {}", draft.path));
                        draft.file.sync().map_err(failed)
                    })
                })
                .and_then(|()| self.check_references(&batch.references))
                .and_then(|()| self.publish_drafts(&mut drafts, portions.peek().is_none()));
            for draft in drafts {
                // After an error, remove the files that were not moved.
                let _ = self.space.remove(&draft.path);
            }
            published?;
        }
        Ok(())
    }

    /// Gives a pack its index and flushes it. Returns its length.
    fn seal(&self, open: &OpenPack, batch: &Batch) -> Result<u64, StoreError> {
        let failed = || StoreError::io(format!("flush {}", open.path));
        let (data_len, grown) = open.lengths();
        let index = pack::encode(data_len, &batch.entries).ok_or_else(|| StoreError::Unsupported {
            what: "so large a save",
            why: format!(
                "it puts {} chunks, and a pack takes {}: publish a manifest more often",
                batch.entries.len(),
                pack::MOST_ENTRIES
            ),
        })?;
        open.file.write_all_at(&index, data_len).map_err(failed())?;
        let len = data_len + index.len() as u64;
        if grown > len {
            self.space.shrink(|| {
                open.file.set_len(len).map_err(failed())?;
                Ok(grown - len)
            })?;
        }
        open.file.sync().map_err(failed())?;
        Ok(len)
    }

    /// Makes a pack durable and announces it. The returned lock keeps collections away.
    fn publish_pack(&self, open: &OpenPack, batch: &Batch) -> Result<Held, StoreError> {
        let failed = || StoreError::io("publish a pack");
        // Flush before taking the lock, because a collection would wait for it.
        let len = self.seal(open, batch)?;
        let id = PackId::random().map_err(failed())?;
        let held = self.locks.publishing()?;
        let published = (|| {
            self.disk.rename(&open.path, &id.path()).map_err(failed())?;
            self.disk.sync_folder(&id.folder()).map_err(failed())?;
            self.index.announce()
        })();
        if published.is_err() {
            // The pack may be in its folder, durable or not. Other handles do not rely on it while it is not settled.
            self.index.distrust(id);
        }
        published?;
        // If this fails, other handles store these chunks once more.
        let _ = open.file.settle();
        self.index.add(id, len, &batch.entries);
        self.pending.published(batch);
        Ok(held)
    }

    /// Forgets the chunks of a pack that could not be published. They are not flushed again, because after a failed
    /// flush a second one may succeed without the data.
    fn abandon(&self, pack: &OpenPack, batch: &Batch) {
        self.pending.lose(batch);
        let _ = self.space.remove(&pack.path);
    }

    fn flush<T: Sync>(
        &self,
        things: &[T],
        flush: impl Fn(&T) -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        let flush = |(): &mut (), thing: &T| flush(thing);
        on_threads(self.disk.flushes(), things, || Ok(()), flush).map(drop)
    }

    /// Writes a manifest to a temporary file, without flushing it.
    fn draft(
        &self,
        (name, data): &(String, &[u8]),
        references: &[ChunkHash],
        held: &mut Option<Held>,
    ) -> Result<Draft, StoreError> {
        let bytes = manifest::encode(name, references, data);
        if bytes.len() as u64 > manifest::LONGEST {
            return Err(StoreError::TooLarge { bytes: bytes.len() as u64, most: manifest::LONGEST });
        }
        let len = bytes.len() as u64;
        let (path, file) = create_temporary(&*self.disk, "manifest")?;
        let draft = Draft { path, target: paths::manifest(name), file };
        let written = (|| {
            while !self.space.grow(&*draft.file, 0, len)? {
                // Eviction needs the lock exclusively, so release it.
                *held = None;
                self.evict(len)?;
                *held = Some(self.locks.publishing()?);
            }
            let failed = StoreError::io(format!("write manifest {name:?}"));
            draft.file.write_all_at(&bytes, 0).map_err(failed)
        })();
        match written {
            Ok(()) => Ok(draft),
            Err(error) => {
                let _ = self.space.remove(&draft.path);
                Err(error)
            }
        }
    }

    /// Checks that every chunk that was put still exists: a collection may have run in between.
    fn check_references(&self, references: &[ChunkHash]) -> Result<(), StoreError> {
        let mut seen = HashSet::new();
        for hash in references {
            loop {
                let Some(pack) = self.index.reliable(hash) else {
                    if self.index.refresh(false)? {
                        continue;
                    }
                    return Err(StoreError::Collected { hash: *hash });
                };
                if seen.contains(&pack.id) {
                    break;
                }
                let there = self.index.exists(&pack);
                if there.map_err(StoreError::io(format!("look at {}", pack.id.path())))? {
                    seen.insert(pack.id);
                    break;
                }
                self.index.refresh(true)?;
            }
        }
        Ok(())
    }

    /// Moves the drafts to their places and takes them out of the list. The very last draft of a batch is moved after
    /// all others are durable.
    fn publish_drafts(&self, drafts: &mut Vec<Draft>, are_last: bool) -> Result<(), StoreError> {
        let intents = self.intend(drafts.iter().map(|draft| &*draft.target))?;
        if are_last {
            self.move_drafts(drafts, 1)?;
        }
        self.move_drafts(drafts, 0)?;
        self.fulfilled(intents);
        Ok(())
    }

    fn move_drafts(&self, drafts: &mut Vec<Draft>, leave: usize) -> Result<(), StoreError> {
        let mut moved = Vec::new();
        while drafts.len() > leave {
            let draft = &drafts[0];
            self.outdate(&draft.target);
            self.replace(&draft.path, &draft.target)?;
            moved.push(drafts.remove(0));
        }
        let folders: BTreeSet<&str> = moved.iter().map(|draft| paths::folder_of(&draft.target)).collect();
        let folders: Vec<&str> = folders.into_iter().collect();
        self.flush(&folders, |folder| {
            let failed = StoreError::io(format!("flush {folder}"));
            self.disk.sync_folder(folder).map_err(failed)
        })?;
        for draft in moved {
            // If this fails, putting the same manifest again writes it again.
            let _ = draft.file.settle();
        }
        Ok(())
    }

    /// Removes a manifest. The name includes the handle's prefix.
    pub(super) fn remove_manifest(&self, name: &str) -> Result<(), StoreError> {
        let held = self.locks.publishing()?;
        self.remove_locked(name, &held)
    }

    fn remove_locked(&self, name: &str, _held: &Held) -> Result<(), StoreError> {
        let path = paths::manifest(name);
        let intents = self.intend([&*path])?;
        self.outdate(&path);
        self.erase(&path)?;
        let folder = paths::folder_of(&path);
        self.disk.sync_folder(folder).map_err(StoreError::io(format!("flush {folder}")))?;
        self.fulfilled(intents);
        Ok(())
    }

    /// Removes a manifest (name with prefix) if it was neither put again nor found unchanged by a put since.
    pub(super) fn remove_revision(&self, name: &str, revision: &Revision) -> Result<bool, StoreError> {
        let Some(read) = revision.mark::<FileRevision>() else {
            return Ok(false);
        };
        // Exclude publishers, and also puts that find the manifest unchanged.
        let held = self.locks.collecting()?;
        let stat = read.file.stat();
        let stat = stat.map_err(StoreError::io(format!("look at manifest {name:?}")))?;
        if !stat.linked || stat.modified != read.modified {
            return Ok(false);
        }
        self.remove_locked(name, &held)?;
        Ok(true)
    }

    /// Updates the last-used time of a manifest's chunks, since their grace period begins when it is removed.
    fn outdate(&self, path: &str) {
        let Ok(file) = self.open_manifest(path).and_then(|file| file.read_all(manifest::LONGEST)) else {
            return;
        };
        let Ok(manifest) = manifest::Manifest::decode(&file) else {
            return;
        };
        for pack in self.index.packs_of(&manifest) {
            self.index.used(&pack);
        }
    }

    /// Announces changes of these manifests in intent files. They remain if this process dies or fails before the
    /// change is durable. The next collection then [repairs](Self::put_again) these manifests before it relies on them.
    /// The caller holds the store's lock, so an intent that a collection finds has no living owner.
    pub(super) fn intend<'a>(&self, manifests: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>, StoreError> {
        let mut intents = Vec::new();
        let made = manifests.into_iter().try_for_each(|manifest| {
            let path = paths::intent(manifest).map_err(StoreError::io("name an intent"))?;
            let made = match self.disk.open(&path, How::Create) {
                // A full disk may still have room for a directory entry, and removals have to work on it.
                Err(error) if is_full(&error) => self.disk.link(paths::STORE_LOCK, &path),
                made => made.map(drop),
            };
            made.map_err(StoreError::io(format!("make {path}")))?;
            intents.push(path);
            Ok(())
        });
        match made {
            Ok(()) => Ok(intents),
            // No manifest has changed yet.
            Err(error) => {
                self.fulfilled(intents);
                Err(error)
            }
        }
    }

    pub(super) fn fulfilled(&self, intents: Vec<String>) {
        for path in intents {
            // If this fails, a collection repairs the manifest needlessly.
            let _ = self.disk.unlink(&path);
        }
    }
}
