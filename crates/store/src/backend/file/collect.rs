//! What goes, and when: rubbish, chunks that nothing refers to, and what the cap has no room for.
//!
//! All of it happens while nobody publishes. What is removed relies on manifests not coming back after a
//! crash, so their folders are flushed before any pack goes.

mod census;
mod plan;

use std::collections::BTreeSet;
use std::time::Duration;

use self::census::Census;
use self::plan::{Fate, Plan};
use super::disk::File;
use super::format::pack::{self, Entry};
use super::index::Pack;
use super::paths::{self, PackId};
use super::pending::create_temporary;
use super::{FileStore, StoreError};
use crate::backend::{CollectOptions, Collected, Progress};

/// What a collection is to achieve.
#[derive(Clone, Copy, Debug)]
struct Aim {
    grace: Duration,
    /// How many bytes have to go at least for it to be of use, and how many should.
    must: u64,
    should: u64,
    /// How much may be written before anything goes, where there is a cap.
    room: Option<u64>,
}

/// How often room is made for the same bytes: others may take what was meant for a pack that is written anew.
const TRIES: usize = 4;

impl FileStore {
    /// Collects and evicts, holding the store's lock.
    pub(super) fn collect_all(
        &self,
        options: &CollectOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Collected, StoreError> {
        let _held = self.locks.collecting()?;
        if !options.dry_run {
            self.recover(true)?;
        }
        // What dead owners left is gone by now, and nothing has to go for it.
        let over = match options.cap {
            Some(cap) => self.space.count()?.saturating_sub(cap),
            None => 0,
        };
        self.index.refresh(true)?;
        let census = Census::take(self, progress)?;
        let aim = Aim {
            grace: options.grace,
            must: over,
            should: over,
            room: match self.space.cap() {
                Some(cap) => Some(cap.saturating_sub(self.space.count()?)),
                None => None,
            },
        };
        let plan = Plan::make(&census, &aim, self.disk.now(), &self.pending.protected());
        let mut collected = plan.collected(&census);
        if !options.dry_run {
            collected.bytes = self.carry_out(&census, &plan, progress)?;
        }
        Ok(collected)
    }

    /// Makes room for so many bytes more under the cap.
    ///
    /// # Errors
    /// [`StoreError::Full`] if that is not possible; then nothing is removed, unless others wrote meanwhile.
    pub(super) fn evict(&self, bytes: u64) -> Result<(), StoreError> {
        let Some(cap) = self.space.cap() else {
            return Ok(());
        };
        let full = || StoreError::Full { needed: bytes, cap };
        if bytes > cap {
            return Err(full());
        }
        let _held = self.locks.collecting()?;
        self.recover(true)?;
        for _ in 0..TRIES {
            let used = self.space.count()?;
            let over = used.saturating_add(bytes).saturating_sub(cap);
            if over == 0 {
                // We have made room, or somebody else has.
                return Ok(());
            }
            self.index.refresh(true)?;
            let census = Census::take(self, &mut |_| ())?;
            let aim = Aim {
                grace: self.options.grace,
                must: over,
                // So that not every save that follows has to collect.
                should: over.saturating_add(cap / 16),
                room: Some(cap.saturating_sub(used)),
            };
            let plan = Plan::make(&census, &aim, self.disk.now(), &self.pending.protected());
            if plan.frees < over {
                return Err(full());
            }
            if self.carry_out(&census, &plan, &mut |_| ())? >= over {
                return Ok(());
            }
        }
        Err(full())
    }

    /// Removes what the plan says. How many bytes that gave back.
    fn carry_out(
        &self,
        census: &Census,
        plan: &Plan,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<u64, StoreError> {
        if plan.is_empty() {
            return Ok(0);
        }
        let mut freed = 0;
        let mut folders = BTreeSet::new();
        // Should we die in between, the next collection has to make sure of it before it lets a pack go.
        let evicted = plan.manifests.iter().map(|&n| &*census.manifests[n].path);
        let intents = self.intend(evicted.clone())?;
        for path in evicted {
            freed += self.erase(path)?;
            folders.insert(paths::folder_of(path));
        }
        for folder in folders {
            let flushed = self.disk.sync_folder(folder);
            flushed.map_err(StoreError::io(format!("flush {folder}")))?;
        }
        self.fulfilled(intents);
        let drops = census.packs.iter().zip(&plan.fates);
        let mut drops = drops.filter(|(_, fate)| **fate == Fate::Drop).peekable();
        if drops.peek().is_some() {
            let dropped: Result<(), StoreError> = drops.try_for_each(|(pack, _)| {
                freed += self.space.remove(&pack.pack.id.path())?;
                Ok(())
            });
            // Whatever comes of the rest: readers close the files of those that are gone.
            self.index.announce()?;
            dropped?;
        }
        for (n, &pack) in plan.rewrites.iter().enumerate() {
            progress(Progress {
                step: "rewriting packs",
                done: n as u64,
                total: plan.rewrites.len() as u64,
            });
            let pack = &census.packs[pack];
            let live: Vec<Entry> = pack
                .entries
                .iter()
                .filter(|(n, entry)| plan.keeps(census, pack.number, *n, entry))
                .map(|(_, entry)| *entry)
                .collect();
            freed += self.rewrite(&pack.pack, pack.modified, &live)?;
        }
        self.index.announce()?;
        self.index.refresh(true)?;
        Ok(freed)
    }

    /// Puts a pack with only these chunks in the place of a pack, as a publication does. What that gave back:
    /// nothing if there is no room for it, or a chunk is damaged.
    fn rewrite(
        &self,
        old: &Pack,
        modified: std::time::SystemTime,
        live: &[Entry],
    ) -> Result<u64, StoreError> {
        let (path, file) = create_temporary(&*self.disk, "pack")?;
        let written = self.write_copy(&*file, old, live);
        let len = match written {
            Ok(Some((len, entries))) => {
                let id = PackId::random().map_err(StoreError::io("name a pack"))?;
                let published = (|| {
                    let _ = file.touch(modified);
                    self.disk.rename(&path, &id.path())?;
                    self.disk.sync_folder(&id.folder())
                })();
                if published.is_err() {
                    self.index.distrust(id);
                }
                published.map_err(StoreError::io("publish a pack"))?;
                let _ = file.settle();
                self.index.add(id, len, &entries);
                len
            }
            other => {
                let _ = self.space.remove(&path);
                return other.map(|_| 0);
            }
        };
        // The new one is announced before the old one goes: who lists in between finds one of them.
        self.index.announce()?;
        let freed = self.space.remove(&old.id.path())?;
        Ok(freed.saturating_sub(len))
    }

    fn write_copy(
        &self,
        file: &dyn File,
        old: &Pack,
        live: &[Entry],
    ) -> Result<Option<(u64, Vec<Entry>)>, StoreError> {
        let failed = || StoreError::io("rewrite a pack");
        let mut entries = Vec::with_capacity(live.len());
        let mut end = 0;
        for entry in live {
            entries.push(Entry {
                offset: end,
                ..*entry
            });
            end += entry.len;
        }
        let Some(index) = pack::encode(end, &entries) else {
            return Ok(None);
        };
        let len = end + index.len() as u64;
        if !self.space.grow(file, 0, len)? {
            return Ok(None);
        }
        for (from, to) in live.iter().zip(&entries) {
            match self.index.read_entry(old, from) {
                Ok(Some(bytes)) => file.write_all_at(&bytes, to.offset).map_err(failed())?,
                Ok(None) => return Ok(None),
                Err(StoreError::Damaged { .. }) => {
                    // So that the next plan does not count on this pack. Whoever collects announces it at the end.
                    self.index.note_damage(old, &from.hash);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        file.write_all_at(&index, end).map_err(failed())?;
        file.sync().map_err(failed())?;
        Ok(Some((len, entries)))
    }
}
