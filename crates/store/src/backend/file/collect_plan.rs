//! The plan of a collection, as data.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::census::Census;
use crate::backend::Collected;
use crate::backend::file::format::pack::{Entry, TRAILER, entry_len};
use crate::hash::ChunkHash;

#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) grace: Duration,
    /// The bytes that must be removed for the collection to succeed, and the bytes that should be.
    pub(super) must: u64,
    pub(super) should: u64,
    pub(super) room: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    /// Nothing in it is kept, so it is removed.
    Drop,
    /// Most of it is not kept, or some of it is damaged, so the rest is copied.
    Rewrite,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) manifests: Vec<usize>,
    /// The number of leftovers among them. The others are evicted.
    leftovers: u64,
    pub(super) fates: Vec<Fate>,
    /// The packs to rewrite, in the order in which there is room for the copies.
    pub(super) rewrites: Vec<usize>,
    pub(super) frees: u64,
    removed_chunks: Vec<bool>,
    kept_bytes: Vec<u64>,
    reclaimed: Vec<u64>,
    in_grace: u64,
}

impl Plan {
    /// Plans the removals, in this order:
    ///
    /// 1. leftovers of saves, and chunks without references, both after the grace period;
    /// 2. until `aim.should` is reached, the least recently used manifests, with the chunks that only they refer to;
    /// 3. until `aim.must` is reached, the other chunks without references, oldest packs first.
    ///
    /// Chunks that are `protected` stay.
    pub(super) fn make(census: &Census, aim: &Aim, now: SystemTime, protected: &HashSet<ChunkHash>) -> Self {
        let mut plan = Self {
            manifests: Vec::new(),
            leftovers: 0,
            fates: vec![Fate::Keep; census.packs.len()],
            rewrites: Vec::new(),
            frees: 0,
            removed_chunks: vec![false; census.chunks.len()],
            kept_bytes: vec![0; census.packs.len()],
            reclaimed: vec![0; census.packs.len()],
            in_grace: 0,
        };
        // Assume first that every pack keeps all its intact copies of chunks. Removals below update the sums.
        for pack in &census.packs {
            let own = pack.entries.iter().filter(|(n, entry)| is_home(census, pack.number, *n, entry));
            plan.kept_bytes[pack.number] = TRAILER as u64 + own.map(|(_, entry)| cost(entry)).sum::<u64>();
        }
        (0..census.packs.len()).for_each(|pack| plan.judge(census, pack));

        let mut references: Vec<u32> = census.chunks.iter().map(|c| c.references).collect();
        for (n, manifest) in census.manifests.iter().enumerate() {
            if manifest.leftover && age(now, manifest.modified) >= aim.grace {
                plan.manifests.push(n);
                plan.leftovers += 1;
                plan.frees += manifest.len;
                for &chunk in &manifest.chunks {
                    references[chunk as usize] -= 1;
                }
            }
        }
        let stays = |chunk: usize| protected.contains(&census.chunks[chunk].hash);
        for pack in &census.packs {
            if age(now, pack.modified) < aim.grace {
                continue;
            }
            for (chunk, entry) in &pack.entries {
                if references[*chunk] == 0 && !stays(*chunk) {
                    plan.remove(census, pack.number, *chunk, entry);
                }
            }
            plan.judge(census, pack.number);
        }

        // Step 2: evict.
        let gone: HashSet<usize> = plan.manifests.iter().copied().collect();
        let mut oldest: Vec<usize> = (0..census.manifests.len()).filter(|n| !gone.contains(n)).collect();
        oldest.sort_by_key(|&n| census.manifests[n].modified);
        for n in oldest {
            if plan.reaches(aim.should, aim.room) {
                break;
            }
            let manifest = &census.manifests[n];
            plan.manifests.push(n);
            plan.frees += manifest.len;
            let mut touched = HashSet::new();
            for &chunk in &manifest.chunks {
                let chunk = chunk as usize;
                references[chunk] -= 1;
                if references[chunk] == 0 && !stays(chunk) {
                    let home = census.chunks[chunk].pack;
                    let entries = &census.packs[home].entries;
                    let at = entries.partition_point(|(_, e)| e.offset < census.chunks[chunk].offset);
                    let own = entries[at..].iter().find(|(n, _)| *n == chunk);
                    if let Some((_, entry)) = own {
                        plan.remove(census, home, chunk, entry);
                    }
                    touched.insert(home);
                }
            }
            for pack in touched {
                plan.judge(census, pack);
            }
        }

        // Step 3: shorten the grace period. Losing a running save is better than failing one that needs the room.
        let mut oldest: Vec<&_> = census.packs.iter().collect();
        oldest.sort_by_key(|pack| pack.modified);
        for pack in oldest {
            if plan.reaches(aim.must, aim.room) {
                break;
            }
            for (chunk, entry) in &pack.entries {
                if references[*chunk] == 0 && !stays(*chunk) {
                    plan.remove(census, pack.number, *chunk, entry);
                }
            }
            plan.judge(census, pack.number);
        }
        (plan.rewrites, plan.frees) = plan.with_room(aim.room);
        for fate in plan.fates.iter_mut().filter(|fate| **fate == Fate::Rewrite) {
            *fate = Fate::Keep;
        }
        for &pack in &plan.rewrites {
            plan.fates[pack] = Fate::Rewrite;
        }
        let left = references.iter().zip(&plan.removed_chunks);
        plan.in_grace = left.filter(|(n, removed_chunks)| **n == 0 && !**removed_chunks).count() as u64;
        plan
    }

    pub(super) fn is_empty(&self) -> bool {
        self.manifests.is_empty() && self.fates.iter().all(|fate| *fate == Fate::Keep)
    }

    /// Tells whether this entry of a pack is the copy of a chunk that stays.
    pub(super) fn keeps(&self, census: &Census, pack: usize, chunk: usize, entry: &Entry) -> bool {
        !self.removed_chunks[chunk] && is_home(census, pack, chunk, entry)
    }

    /// Returns the report of this plan. Unneeded chunks in a pack that stays as it is are still stored, so they are not
    /// counted as removed.
    pub(super) fn collected(&self, census: &Census) -> Collected {
        let gone = |chunk: &usize| self.removed_chunks[*chunk] && self.fates[census.chunks[*chunk].pack] != Fate::Keep;
        let damaged = census.packs.iter().flat_map(|pack| &pack.damaged);
        Collected {
            manifests: self.manifests.len() as u64 - self.leftovers,
            leftovers: self.leftovers,
            chunks: (0..census.chunks.len()).filter(gone).count() as u64,
            bytes: self.frees,
            in_grace: self.in_grace,
            damaged: damaged.filter(|&&chunk| !self.removed_chunks[chunk]).count() as u64,
        }
    }

    fn reaches(&self, aim: u64, room: Option<u64>) -> bool {
        self.frees >= aim && (room.is_none() || self.with_room(room).1 >= aim)
    }

    /// Returns the packs that can be rewritten, and the bytes that the plan then reclaims. A copy needs room before its
    /// original is removed. The smallest copies come first, since each reclaims room for the next.
    fn with_room(&self, room: Option<u64>) -> (Vec<usize>, u64) {
        let mut rewrites: Vec<usize> =
            (0..self.fates.len()).filter(|&pack| self.fates[pack] == Fate::Rewrite).collect();
        rewrites.sort_by_key(|&pack| self.kept_bytes[pack]);
        let mut freed = self.frees - rewrites.iter().map(|&pack| self.reclaimed[pack]).sum::<u64>();
        let mut fitting = 0;
        for &pack in &rewrites {
            if room.is_some_and(|room| self.kept_bytes[pack] > room.saturating_add(freed)) {
                break;
            }
            freed += self.reclaimed[pack];
            fitting += 1;
        }
        rewrites.truncate(fitting);
        (rewrites, freed)
    }

    fn remove(&mut self, census: &Census, pack: usize, chunk: usize, entry: &Entry) {
        if is_home(census, pack, chunk, entry) && !self.removed_chunks[chunk] {
            self.removed_chunks[chunk] = true;
            self.kept_bytes[pack] -= cost(entry);
        }
    }

    /// Rewriting is worth its cost if it reclaims half of the file.
    fn judge(&mut self, census: &Census, pack: usize) {
        let (kept_bytes, len) = (self.kept_bytes[pack], census.packs[pack].pack.len);
        let mut damaged = census.packs[pack].damaged.iter();
        let (fate, reclaimed) = match kept_bytes {
            kept_bytes if kept_bytes == TRAILER as u64 => (Fate::Drop, len),
            _ if damaged.any(|&chunk| !self.removed_chunks[chunk]) => (Fate::Keep, 0),
            kept_bytes if kept_bytes <= len / 2 || census.packs[pack].spoiled => {
                (Fate::Rewrite, len.saturating_sub(kept_bytes))
            }
            _ => (Fate::Keep, 0),
        };
        self.frees = self.frees + reclaimed - std::mem::replace(&mut self.reclaimed[pack], reclaimed);
        self.fates[pack] = fate;
    }
}

fn cost(entry: &Entry) -> u64 {
    entry.len + entry_len(&entry.hash)
}

fn is_home(census: &Census, pack: usize, chunk: usize, entry: &Entry) -> bool {
    let chunk = &census.chunks[chunk];
    (chunk.pack, chunk.offset) == (pack, entry.offset)
}

fn age(now: SystemTime, modified: SystemTime) -> Duration {
    now.duration_since(modified).unwrap_or_default()
}
