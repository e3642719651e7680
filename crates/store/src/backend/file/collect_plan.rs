//! What is to go, as data.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::census::Census;
use crate::backend::Collected;
use crate::backend::file::format::pack::{Entry, TRAILER, entry_len};
use crate::hash::ChunkHash;

/// What a collection is to achieve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) grace: Duration,
    /// How many bytes have to go at least for it to be of use, and how many should.
    pub(super) must: u64,
    pub(super) should: u64,
    /// How much may be written before anything goes, where there is a cap.
    pub(super) room: Option<u64>,
}

/// What becomes of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    /// Nothing in it is kept.
    Drop,
    /// Most of it is not kept, or some of it is damaged: the rest is copied.
    Rewrite,
}

/// What a collection does.
#[derive(Debug)]
pub(super) struct Plan {
    /// Manifests that go.
    pub(super) manifests: Vec<usize>,
    /// How many of them nobody needs any more; the others are evicted.
    leftovers: u64,
    /// What becomes of each pack.
    pub(super) fates: Vec<Fate>,
    /// The packs that are written anew, in the order in which there is room for that.
    pub(super) rewrites: Vec<usize>,
    /// How many bytes that gives back.
    pub(super) frees: u64,
    /// Of each chunk, whether it goes.
    goes: Vec<bool>,
    /// Of each pack, how many bytes of its file are kept.
    kept: Vec<u64>,
    /// Of each pack, how many bytes its fate gives back.
    gives: Vec<u64>,
    in_grace: u64,
}

impl Plan {
    /// Plans what goes: what dead saves left and chunks that nobody refers to, both after the grace period; then, as
    /// long as `aim.should` is not reached, the least recently used manifests with what only they refer to; then, as
    /// long as `aim.must` is not reached, other chunks that nobody refers to, the oldest packs first. Chunks that are
    /// `protected` stay.
    pub(super) fn make(census: &Census, aim: &Aim, now: SystemTime, protected: &HashSet<ChunkHash>) -> Self {
        let mut plan = Self {
            manifests: Vec::new(),
            leftovers: 0,
            fates: vec![Fate::Keep; census.packs.len()],
            rewrites: Vec::new(),
            frees: 0,
            goes: vec![false; census.chunks.len()],
            kept: vec![0; census.packs.len()],
            gives: vec![0; census.packs.len()],
            in_grace: 0,
        };
        for pack in &census.packs {
            let own = pack.entries.iter().filter(|(n, entry)| is_home(census, pack.number, *n, entry));
            plan.kept[pack.number] = TRAILER as u64 + own.map(|(_, entry)| cost(entry)).sum::<u64>();
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
        let left = references.iter().zip(&plan.goes);
        plan.in_grace = left.filter(|(n, goes)| **n == 0 && !**goes).count() as u64;
        plan
    }

    /// Whether nothing goes.
    pub(super) fn is_empty(&self) -> bool {
        self.manifests.is_empty() && self.fates.iter().all(|fate| *fate == Fate::Keep)
    }

    /// Whether this entry of a pack is the copy of a chunk that stays.
    pub(super) fn keeps(&self, census: &Census, pack: usize, chunk: usize, entry: &Entry) -> bool {
        !self.goes[chunk] && is_home(census, pack, chunk, entry)
    }

    /// What it comes to. Chunks that nobody needs in a pack that stays as it is are not counted: they are
    /// still there.
    pub(super) fn collected(&self, census: &Census) -> Collected {
        let gone = |chunk: &usize| self.goes[*chunk] && self.fates[census.chunks[*chunk].pack] != Fate::Keep;
        let damaged = census.packs.iter().flat_map(|pack| &pack.damaged);
        Collected {
            manifests: self.manifests.len() as u64 - self.leftovers,
            leftovers: self.leftovers,
            chunks: (0..census.chunks.len()).filter(gone).count() as u64,
            bytes: self.frees,
            in_grace: self.in_grace,
            damaged: damaged.filter(|&&chunk| !self.goes[chunk]).count() as u64,
        }
    }

    fn reaches(&self, aim: u64, room: Option<u64>) -> bool {
        self.frees >= aim && (room.is_none() || self.with_room(room).1 >= aim)
    }

    /// The packs that can be written anew, and what everything gives back then. A copy needs room before the pack
    /// goes that it is made of; the smallest ones come first, since each makes room for the next.
    fn with_room(&self, room: Option<u64>) -> (Vec<usize>, u64) {
        let mut rewrites: Vec<usize> =
            (0..self.fates.len()).filter(|&pack| self.fates[pack] == Fate::Rewrite).collect();
        rewrites.sort_by_key(|&pack| self.kept[pack]);
        let mut freed = self.frees - rewrites.iter().map(|&pack| self.gives[pack]).sum::<u64>();
        let mut fitting = 0;
        for &pack in &rewrites {
            if room.is_some_and(|room| self.kept[pack] > room.saturating_add(freed)) {
                break;
            }
            freed += self.gives[pack];
            fitting += 1;
        }
        rewrites.truncate(fitting);
        (rewrites, freed)
    }

    fn remove(&mut self, census: &Census, pack: usize, chunk: usize, entry: &Entry) {
        if is_home(census, pack, chunk, entry) && !self.goes[chunk] {
            self.goes[chunk] = true;
            self.kept[pack] -= cost(entry);
        }
    }

    /// Decides what becomes of a pack after something of it went. A copy is worth it when it gives half back.
    fn judge(&mut self, census: &Census, pack: usize) {
        let (kept, len) = (self.kept[pack], census.packs[pack].pack.len);
        let mut damaged = census.packs[pack].damaged.iter();
        let (fate, gives) = match kept {
            kept if kept == TRAILER as u64 => (Fate::Drop, len),
            _ if damaged.any(|&chunk| !self.goes[chunk]) => (Fate::Keep, 0),
            kept if kept <= len / 2 || census.packs[pack].spoiled => (Fate::Rewrite, len.saturating_sub(kept)),
            _ => (Fate::Keep, 0),
        };
        self.frees = self.frees + gives - std::mem::replace(&mut self.gives[pack], gives);
        self.fates[pack] = fate;
    }
}

/// What a chunk takes in a pack's file.
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
