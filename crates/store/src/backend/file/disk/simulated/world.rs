//! Files and folders: their visible state, their durable state, and the changes in between.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::thread::ThreadId;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::super::{Lock, Stat};
use super::faults::{Faults, Mistake};

pub(super) const ROOT: u64 = 0;

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) inodes: HashMap<u64, Inode>,
    next: u64,
    pub(super) faults: Faults,
    /// Renames whose new entry was lost in a failed flush or a loss of power. They keep their old entry.
    pub(super) lost: HashSet<u64>,
    /// The inode of each open file.
    pub(super) open: HashMap<u64, u64>,
    /// The held locks: inode, open file, kind, and the thread that took it.
    pub(super) locks: Vec<(u64, u64, Lock, ThreadId)>,
    pub(super) most_bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Inode {
    Folder(Folder),
    File(Contents),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Folder {
    pub(super) seen: BTreeMap<String, u64>,
    pub(super) durable: BTreeMap<String, u64>,
    /// Changes since the last flush, in order.
    pub(super) changes: Vec<EntryChange>,
}

#[derive(Clone, Debug)]
pub(super) struct EntryChange {
    pub(super) name: String,
    pub(super) inode: Option<u64>,
    /// The number of the rename, the same for both entries.
    pub(super) rename: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) seen: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Changes since the last flush, in order.
    pub(super) changes: Vec<Change>,
    pub(super) settled: bool,
    pub(super) modified: SystemTime,
    pub(super) links: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self { next: 1, ..Self::default() };
        world.inodes.insert(ROOT, Inode::Folder(Folder::default()));
        world
    }

    pub(super) fn copy(&self) -> Self {
        Self { faults: self.faults.copy(), open: HashMap::new(), locks: Vec::new(), ..self.clone() }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Returns a time that advances by a second with each change.
    pub(super) fn clock(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000 + self.faults.changes)
    }

    pub(super) fn find(&self, path: &str) -> io::Result<u64> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = *self.folder(at)?.seen.get(part).ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    pub(super) fn folder(&self, inode: u64) -> io::Result<&Folder> {
        match &self.inodes[&inode] {
            Inode::Folder(folder) => Ok(folder),
            Inode::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    pub(super) fn folder_mut(&mut self, inode: u64) -> io::Result<&mut Folder> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::Folder(folder)) => Ok(folder),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    pub(super) fn file_mut(&mut self, inode: u64) -> &mut Contents {
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => file,
            _ => panic!("inode {inode} is no file"),
        }
    }

    pub(super) fn create_file(&mut self) -> u64 {
        let inode = self.number();
        let file = Contents {
            seen: Vec::new(),
            durable: Vec::new(),
            changes: Vec::new(),
            settled: false,
            modified: self.clock(),
            links: 0,
        };
        self.inodes.insert(inode, Inode::File(file));
        inode
    }

    pub(super) fn create_folder(&mut self) -> u64 {
        let inode = self.number();
        self.inodes.insert(inode, Inode::Folder(Folder::default()));
        inode
    }

    pub(super) fn set(&mut self, path: &str, inode: Option<u64>, rename: Option<u64>) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.find(folder)?;
        let folder = self.folder_mut(folder)?;
        let before = match inode {
            Some(inode) => folder.seen.insert(name.into(), inode),
            None => folder.seen.remove(name),
        };
        folder.changes.push(EntryChange { name: name.into(), inode, rename });
        self.link(before, -1);
        self.link(inode, 1);
        Ok(())
    }

    fn link(&mut self, inode: Option<u64>, more: i32) {
        if let Some(Inode::File(file)) = inode.and_then(|inode| self.inodes.get_mut(&inode)) {
            file.links = file.links.saturating_add_signed(more);
        }
    }

    pub(super) fn flush_file(&mut self, inode: u64) {
        self.file_mut(inode).flush();
    }

    pub(super) fn flush_folder(&mut self, inode: u64) -> io::Result<()> {
        let lost = std::mem::take(&mut self.lost);
        let removals = self.faults.mistake != Mistake::NoRemovalFlush;
        let folder = self.folder_mut(inode)?;
        let mut later = Vec::new();
        if !removals {
            let is_removal = |change: &mut EntryChange| change.inode.is_none() && change.rename.is_none();
            later.extend(folder.changes.extract_if(.., is_removal));
            later.retain(|change| !folder.seen.contains_key(&change.name));
        }
        folder.flush(&lost);
        folder.changes = later;
        self.lost = lost;
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        let files = self.inodes.values().map(|inode| match inode {
            Inode::File(file) if file.links > 0 => file.seen.len() as u64,
            _ => 0,
        });
        files.sum()
    }

    pub(super) fn stat(&self, inode: u64) -> Stat {
        match &self.inodes[&inode] {
            Inode::Folder(_) => Stat { len: 0, modified: UNIX_EPOCH, settled: false, regular: false, linked: true },
            Inode::File(file) => Stat {
                len: file.seen.len() as u64,
                modified: file.modified,
                settled: file.settled || self.faults.mistake == Mistake::EverythingSettled,
                regular: true,
                linked: file.links > 0,
            },
        }
    }
}

impl Folder {
    /// Makes the changes durable. The renames in `lost` keep their old entry.
    pub(super) fn flush(&mut self, lost: &HashSet<u64>) {
        for change in std::mem::take(&mut self.changes) {
            match change.inode {
                Some(inode) => drop(self.durable.insert(change.name, inode)),
                None if change.rename.is_some_and(|rename| lost.contains(&rename)) => {}
                None => drop(self.durable.remove(&change.name)),
            }
        }
    }
}

impl Contents {
    fn flush(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Write(offset, bytes) => put(&mut self.durable, offset, &bytes),
                Change::Length(len) => self.durable.resize(len, 0),
            }
        }
    }
}

pub(super) fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}
