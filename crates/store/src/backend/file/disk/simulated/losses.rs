//! Failed flushes and losses of power: some changes since the last flush survive, in any order.

use std::collections::{HashMap, HashSet};

use super::world::{Change, Contents, Folder, Inode, World, put};

const SECTOR: usize = 512;

/// The number of changes out of four that survive. It differs between losses.
type Share = u64;

impl World {
    pub(super) fn lose_power(&mut self, random: &mut Random) {
        let share = random.below(5);
        let mut numbers: Vec<u64> = self.inodes.keys().copied().collect();
        numbers.sort_unstable();
        for number in &numbers {
            match self.inodes.get_mut(number) {
                Some(Inode::File(file)) => {
                    file.write_some(share, random);
                    // The mode is written at some time, too, so it may be lost.
                    file.settled &= random.below(2) == 0;
                    file.seen.clone_from(&file.durable);
                }
                Some(Inode::Folder(folder)) => folder.choose(share, random, &mut self.lost),
                None => {}
            }
        }
        for number in &numbers {
            if let Some(Inode::Folder(folder)) = self.inodes.get_mut(number) {
                folder.flush(&self.lost);
                folder.seen.clone_from(&folder.durable);
            }
        }
        let mut links: HashMap<u64, u32> = HashMap::new();
        for inode in self.inodes.values() {
            if let Inode::Folder(folder) = inode {
                for entry in folder.seen.values() {
                    *links.entry(*entry).or_default() += 1;
                }
            }
        }
        self.inodes.retain(|number, inode| match inode {
            Inode::File(file) => {
                file.links = links.get(number).copied().unwrap_or(0);
                file.links > 0
            }
            Inode::Folder(_) => true,
        });
        self.lost.clear();
        self.most_bytes = 0;
    }

    /// Fails a flush: some of the data becomes durable, and no later flush writes the rest.
    pub(super) fn fail_to_flush(&mut self, inode: u64) {
        if self.faults.stopped {
            return;
        }
        let mut random = Random(self.faults.calls);
        let share = random.below(4);
        let Self { inodes, lost, .. } = self;
        match inodes.get_mut(&inode) {
            Some(Inode::File(file)) => file.write_some(share, &mut random),
            Some(Inode::Folder(folder)) => {
                folder.choose(share, &mut random, lost);
                folder.flush(lost);
            }
            None => {}
        }
    }
}

impl Folder {
    /// Keeps the changes that survive: for each name a random number of the first ones.
    fn choose(&mut self, share: Share, random: &mut Random, lost: &mut HashSet<u64>) {
        let mut ended = HashSet::new();
        self.changes.retain(|change| {
            let survives = !ended.contains(&change.name) && random.below(4) < share;
            if !survives {
                ended.insert(change.name.clone());
                if change.inode.is_some() {
                    lost.extend(change.rename);
                }
            }
            survives
        });
    }
}

impl Contents {
    fn write_some(&mut self, share: Share, random: &mut Random) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Length(len) => {
                    if random.below(4) < share {
                        self.durable.resize(len, 0);
                    }
                }
                Change::Write(offset, bytes) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let end = bytes.len().min(at + SECTOR - (offset + at) % SECTOR);
                        if random.below(4) < share {
                            put(&mut self.durable, offset + at, &bytes[at..end]);
                        }
                        at = end;
                    }
                }
            }
        }
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}
