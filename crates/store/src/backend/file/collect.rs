//! What goes, and when: rubbish, chunks that nothing refers to, and what the cap has no room for.
//!
//! All of it happens while nobody publishes. What is removed relies on manifests not coming back after a
//! crash, so their folders are flushed before any pack goes.

use std::collections::BTreeSet;

use super::FileStore;
use super::census::Census;
use super::collect_plan::{Aim, Fate, Plan};
use super::disk::{File, is_full};
use super::format::pack::{self, Entry};
use super::index::Pack;
use super::paths::{self, PackId};
use super::pending::create_temporary;
use crate::backend::{CollectOptions, Collected, Progress};
use crate::error::StoreError;

/// What came of a plan.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// How many bytes it gave back.
    freed: u64,
    /// Packs could not be written anew, because the disk has no room for a copy.
    no_room: bool,
    /// Chunks that were found damaged. Their packs stay.
    damaged: u64,
}

/// Why a pack that was to be written anew stays as it is.
enum Stays {
    /// The disk has no room for a copy.
    NoRoom,
    /// A chunk of it is damaged.
    Damaged,
    /// Others have taken the room under the cap, or its chunks are too many.
    Otherwise,
    Failed(StoreError),
}

impl From<StoreError> for Stays {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Io { source, .. } if is_full(&source) => Self::NoRoom,
            error => Self::Failed(error),
        }
    }
}

/// How often room is made for the same bytes: others may take what was meant for a pack that is written anew.
const TRIES: usize = 4;

/// How often a collection is planned that misses its cap because packs could not be written anew. The second plan does
/// not count on them.
const ROUNDS: usize = 2;

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
        let mut collected = Collected::default();
        let mut no_room = false;
        for _ in 0..ROUNDS {
            // What dead owners left is gone by now, and nothing has to go for it.
            let over = self.over(options.cap)?;
            self.index.refresh(true)?;
            let census = Census::take(self, progress)?;
            let aim = Aim { grace: options.grace, must: over, should: over, room: self.room(no_room)? };
            let mut plan = Plan::make(&census, &aim, self.disk.now(), &self.pending.protected());
            let mut carried = Carried::default();
            if !options.dry_run {
                carried = self.carry_out(&census, &mut plan, progress)?;
                plan.frees = carried.freed;
            }
            let round = plan.collected(&census);
            collected = Collected {
                manifests: collected.manifests + round.manifests,
                leftovers: collected.leftovers + round.leftovers,
                chunks: collected.chunks + round.chunks,
                bytes: collected.bytes + round.bytes,
                in_grace: round.in_grace,
                damaged: round.damaged + carried.damaged,
            };
            no_room = carried.no_room;
            if !(no_room || carried.damaged > 0) || self.over(options.cap)? == 0 {
                break;
            }
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
        let mut no_room = false;
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
                room: self.room(no_room)?,
            };
            let mut plan = Plan::make(&census, &aim, self.disk.now(), &self.pending.protected());
            if plan.frees < over {
                return Err(full());
            }
            let carried = self.carry_out(&census, &mut plan, &mut |_| ())?;
            if carried.freed >= over {
                return Ok(());
            }
            no_room |= carried.no_room;
        }
        Err(full())
    }

    /// How many bytes have to go for the store to be no larger than this.
    fn over(&self, cap: Option<u64>) -> Result<u64, StoreError> {
        match cap {
            Some(cap) => Ok(self.space.count()?.saturating_sub(cap)),
            None => Ok(0),
        }
    }

    /// How much may be written before anything goes, as far as that is known.
    fn room(&self, disk_is_full: bool) -> Result<Option<u64>, StoreError> {
        match self.space.cap() {
            _ if disk_is_full => Ok(Some(0)),
            Some(cap) => Ok(Some(cap.saturating_sub(self.space.count()?))),
            None => Ok(None),
        }
    }

    /// Removes what the plan says, and takes out of the plan what could not be written anew.
    fn carry_out(
        &self,
        census: &Census,
        plan: &mut Plan,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Carried, StoreError> {
        let mut carried = Carried::default();
        if plan.is_empty() {
            return Ok(carried);
        }
        let mut folders = BTreeSet::new();
        // Should we die in between, the next collection has to make sure of it before it lets a pack go.
        let evicted = plan.manifests.iter().map(|&n| &*census.manifests[n].path);
        let intents = self.intend(evicted.clone())?;
        for path in evicted {
            carried.freed += self.erase(path)?;
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
                carried.freed += self.space.remove(&pack.pack.id.path())?;
                Ok(())
            });
            // Whatever comes of the rest: readers close the files of those that are gone.
            self.index.announce()?;
            dropped?;
        }
        let rewrites = std::mem::take(&mut plan.rewrites);
        for (n, &number) in rewrites.iter().enumerate() {
            progress(Progress { step: "rewriting packs", done: n as u64, total: rewrites.len() as u64 });
            let pack = &census.packs[number];
            let live: Vec<Entry> = pack
                .entries
                .iter()
                .filter(|(n, entry)| plan.keeps(census, pack.number, *n, entry))
                .map(|(_, entry)| *entry)
                .collect();
            match self.rewrite(&pack.pack, pack.modified, &live) {
                Ok(bytes) => {
                    carried.freed += bytes;
                    continue;
                }
                Err(Stays::NoRoom) => carried.no_room = true,
                Err(Stays::Damaged) => carried.damaged += 1,
                Err(Stays::Otherwise) => {}
                Err(Stays::Failed(error)) => return Err(error),
            }
            plan.fates[number] = Fate::Keep;
        }
        self.index.announce()?;
        self.index.refresh(true)?;
        Ok(carried)
    }

    /// Puts a pack with only these chunks in the place of a pack, as a publication does. What that gave back.
    fn rewrite(&self, old: &Pack, modified: std::time::SystemTime, live: &[Entry]) -> Result<u64, Stays> {
        let (path, file) = create_temporary(&*self.disk, "pack")?;
        let given_up = |_: &Stays| {
            let _ = self.space.remove(&path);
        };
        let written = self.write_copy(&*file, old, live);
        let (len, entries) = written.inspect_err(given_up)?;
        let id = PackId::random().map_err(StoreError::io("name a pack"))?;
        let published = (|| {
            let _ = file.touch(modified);
            self.disk.rename(&path, &id.path())?;
            self.disk.sync_folder(&id.folder())
        })();
        let published = published.map_err(|error| {
            self.index.distrust(id);
            Stays::from(StoreError::io("publish a pack")(error))
        });
        published.inspect_err(given_up)?;
        let _ = file.settle();
        self.index.add(id, len, &entries);
        // The new one is announced before the old one goes: who lists in between finds one of them.
        self.index.announce()?;
        let freed = self.space.remove(&old.id.path())?;
        Ok(freed.saturating_sub(len))
    }

    /// Writes these chunks and their index, and flushes them. The length of the file, and what is where.
    fn write_copy(&self, file: &dyn File, old: &Pack, live: &[Entry]) -> Result<(u64, Vec<Entry>), Stays> {
        let failed = || StoreError::io("rewrite a pack");
        let mut entries = Vec::with_capacity(live.len());
        let mut end = 0;
        for entry in live {
            entries.push(Entry { offset: end, ..*entry });
            end += entry.len;
        }
        let index = pack::encode(end, &entries).ok_or(Stays::Otherwise)?;
        let len = end + index.len() as u64;
        if !self.space.grow(file, 0, len)? {
            return Err(Stays::Otherwise);
        }
        for (from, to) in live.iter().zip(&entries) {
            match self.index.read_entry(old, from) {
                Ok(Some(bytes)) => file.write_all_at(&bytes, to.offset).map_err(failed())?,
                Ok(None) => return Err(Stays::Otherwise),
                Err(StoreError::Damaged { .. }) => {
                    // So that the next plan does not count on this pack. Whoever collects announces it at the end.
                    self.index.note_damage(old, &from.hash);
                    return Err(Stays::Damaged);
                }
                Err(error) => return Err(error.into()),
            }
        }
        file.write_all_at(&index, end).map_err(failed())?;
        file.sync().map_err(failed())?;
        Ok((len, entries))
    }
}
