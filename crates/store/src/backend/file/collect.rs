//! Collection: removal of garbage, of chunks without references, and of manifests for which the cap has no room.
//!
//! All of it happens while no process publishes. A removed manifest must not come back after a crash, so manifest
//! folders are flushed before any pack is removed.

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

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    freed: u64,
    /// Whether some packs could not be rewritten because the disk has no room for a copy.
    no_room: bool,
    damaged: u64,
}

enum Stays {
    NoRoom,
    Damaged,
    /// Another process took the room under the cap, or the pack has too many chunks.
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

/// The number of attempts to make room for the same bytes: other processes may take the room meant for a rewritten
/// pack.
const TRIES: usize = 4;

/// The number of plans of a collection that misses its cap because packs could not be rewritten. The second plan does
/// not count on them.
const ROUNDS: usize = 2;

impl FileStore {
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
            // Recovery has removed the files of dead owners, so they do not count here.
            let over = self.over(options.cap)?;
            self.index.refresh(true)?;
            let census = Census::take(self, progress)?;
            let aim = Aim { grace: options.grace, must: over, should: over, room: self.room(no_room)? };
            let mut plan = Plan::make(&census, &aim, self.disk.now(), &self.pending.protected());
            let mut outcome = Outcome::default();
            if !options.dry_run {
                outcome = self.carry_out(&census, &mut plan, progress)?;
                plan.frees = outcome.freed;
            }
            let round = plan.collected(&census);
            collected = Collected {
                manifests: collected.manifests + round.manifests,
                leftovers: collected.leftovers + round.leftovers,
                chunks: collected.chunks + round.chunks,
                bytes: collected.bytes + round.bytes,
                in_grace: round.in_grace,
                damaged: round.damaged + outcome.damaged,
            };
            no_room = outcome.no_room;
            if !(no_room || outcome.damaged > 0) || self.over(options.cap)? == 0 {
                break;
            }
        }
        Ok(collected)
    }

    /// Makes room for this many more bytes under the cap.
    ///
    /// # Errors
    /// [`StoreError::Full`] if that is not possible. Then nothing is removed, unless other processes wrote meanwhile.
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
                // An earlier attempt made room, or another process did.
                return Ok(());
            }
            self.index.refresh(true)?;
            let census = Census::take(self, &mut |_| ())?;
            let aim = Aim {
                grace: self.options.grace,
                must: over,
                // Evict some more, so that the next saves need not collect.
                should: over.saturating_add(cap / 16),
                room: self.room(no_room)?,
            };
            let mut plan = Plan::make(&census, &aim, self.disk.now(), &self.pending.protected());
            if plan.frees < over {
                return Err(full());
            }
            let outcome = self.carry_out(&census, &mut plan, &mut |_| ())?;
            if outcome.freed >= over {
                return Ok(());
            }
            no_room |= outcome.no_room;
        }
        Err(full())
    }

    fn over(&self, cap: Option<u64>) -> Result<u64, StoreError> {
        match cap {
            Some(cap) => Ok(self.space.count()?.saturating_sub(cap)),
            None => Ok(0),
        }
    }

    /// Returns how much may be written before anything is removed, if there is a limit.
    fn room(&self, disk_is_full: bool) -> Result<Option<u64>, StoreError> {
        match self.space.cap() {
            _ if disk_is_full => Ok(Some(0)),
            Some(cap) => Ok(Some(cap.saturating_sub(self.space.count()?))),
            None => Ok(None),
        }
    }

    /// Removes what the plan says, and drops from the plan the packs that could not be rewritten.
    fn carry_out(
        &self,
        census: &Census,
        plan: &mut Plan,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, StoreError> {
        let mut outcome = Outcome::default();
        if plan.is_empty() {
            return Ok(outcome);
        }
        let mut folders = BTreeSet::new();
        // If this process dies before the folders are flushed, the intents make the next collection finish the removal
        // before it removes a pack.
        let evicted = plan.manifests.iter().map(|&n| &*census.manifests[n].path);
        let intents = self.intend(evicted.clone())?;
        for path in evicted {
            outcome.freed += self.erase(path)?;
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
                outcome.freed += self.space.remove(&pack.pack.id.path())?;
                Ok(())
            });
            // Announce even after an error, so that readers close the files of removed packs.
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
                    outcome.freed += bytes;
                    continue;
                }
                Err(Stays::NoRoom) => outcome.no_room = true,
                Err(Stays::Damaged) => outcome.damaged += 1,
                Err(Stays::Otherwise) => {}
                Err(Stays::Failed(error)) => return Err(error),
            }
            plan.fates[number] = Fate::Keep;
        }
        self.index.announce()?;
        self.index.refresh(true)?;
        Ok(outcome)
    }

    /// Replaces a pack by a copy with only these chunks, in the same steps as a publication. Returns the bytes
    /// reclaimed.
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
        // Announce the new pack before removing the old one, so that a reader who lists in between finds one of them.
        self.index.announce()?;
        let freed = self.space.remove(&old.id.path())?;
        Ok(freed.saturating_sub(len))
    }

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
                    // Make the next plan leave this pack alone. The caller announces the damage at the end.
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
