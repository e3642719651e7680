//! A disk in memory that forgets what was not flushed.
//!
//! The model is what POSIX promises and no more. What a call wrote can be seen at once; it survives a loss of
//! power only if the file was flushed afterwards, and an entry of a folder only if that folder was. What was
//! not flushed survives or not, each sector of 512 bytes and each entry by itself and in any order; a rename
//! is never half done. A flush that fails forgets what it should have written: the next one succeeds without.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::{Disk, File, How, Lock, Stat};

const SECTOR: usize = 512;
const ROOT: u64 = 0;

/// A handle on a simulated disk. Clones are the same disk; [`copy`](Self::copy) makes another one.
#[derive(Clone, Debug)]
pub(in super::super) struct SimulatedDisk(Arc<Mutex<World>>);

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Trouble {
    /// The call fails and does nothing. A flush forgets besides.
    Error(Errno),
    /// A write or read does half of it.
    Short,
}

/// Mistakes that a store could make in using the disk, made for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Mistake {
    #[default]
    None,
    /// Folders whose path begins so are not flushed.
    NoFolderFlush(&'static str),
    /// Files whose path ends so are not flushed.
    NoFileFlush(&'static str),
    /// Files are moved to their place first and flushed then.
    RenameBeforeFlush,
    /// Whatever can be seen counts as durable.
    EverythingSettled,
    /// Files whose path ends so are never left behind.
    NoFile(&'static str),
}

#[derive(Clone, Debug, Default)]
struct World {
    inodes: HashMap<u64, Inode>,
    next: u64,
    calls: u64,
    changes: u64,
    /// At which call what goes wrong.
    trouble: Option<(u64, Trouble)>,
    /// At which change the process dies.
    stop: Option<u64>,
    stopped: bool,
    mistake: Mistake,
    late: Vec<u64>,
    /// Who holds which lock: number of the inode, number of the open file.
    locks: Vec<(u64, u64, Lock)>,
}

#[derive(Clone, Debug)]
enum Inode {
    Folder(Folder),
    File(Contents),
}

#[derive(Clone, Debug, Default)]
struct Folder {
    seen: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    /// Since the last flush, in order. A rename has the same number on both sides.
    changes: Vec<(String, Option<u64>, Option<u64>)>,
}

#[derive(Clone, Debug)]
struct Contents {
    seen: Vec<u8>,
    durable: Vec<u8>,
    changes: Vec<Change>,
    settled: bool,
    modified: SystemTime,
    /// Number of entries in folders.
    links: u32,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl SimulatedDisk {
    pub(in super::super) fn new() -> Self {
        let mut world = World {
            next: 1,
            ..World::default()
        };
        world.inodes.insert(ROOT, Inode::Folder(Folder::default()));
        Self(Arc::new(Mutex::new(world)))
    }

    /// Another disk with the same content, unflushed things included, and no open files.
    pub(in super::super) fn copy(&self) -> Self {
        let mut world = self.world().clone();
        world.locks.clear();
        world.trouble = None;
        world.stop = None;
        world.stopped = false;
        world.calls = 0;
        world.changes = 0;
        world.late.clear();
        Self(Arc::new(Mutex::new(world)))
    }

    pub(in super::super) fn with_mistake(self, mistake: Mistake) -> Self {
        self.world().mistake = mistake;
        self
    }

    /// What goes wrong at the call of this number, counted from 0 of this disk's life.
    pub(in super::super) fn trouble(&self, call: u64, trouble: Trouble) {
        self.world().trouble = Some((call, trouble));
    }

    /// The cause of what went wrong is gone.
    pub(in super::super) fn no_trouble(&self) {
        self.world().trouble = None;
    }

    /// The process dies instead of making this change.
    pub(in super::super) fn stop_at(&self, change: u64) {
        self.world().stop = Some(change);
    }

    pub(in super::super) fn is_stopped(&self) -> bool {
        self.world().stopped
    }

    /// Number of calls, and of those that change something.
    pub(in super::super) fn counts(&self) -> (u64, u64) {
        let world = self.world();
        (world.calls, world.changes)
    }

    /// The disk as it is found after a loss of power. The seed says what survives.
    pub(in super::super) fn lose_power(&self, seed: u64) -> Self {
        let copy = self.copy();
        copy.world().lose_power(&mut Random(seed));
        copy
    }

    /// All regular files with their content.
    pub(in super::super) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let world = self.world();
        let mut files = Vec::new();
        let mut todo = vec![(String::new(), ROOT)];
        while let Some((path, inode)) = todo.pop() {
            match &world.inodes[&inode] {
                Inode::File(file) => files.push((path, file.seen.clone())),
                Inode::Folder(folder) => todo.extend(folder.seen.iter().map(|(name, inode)| {
                    let slash = if path.is_empty() { "" } else { "/" };
                    (format!("{path}{slash}{name}"), *inode)
                })),
            }
        }
        files
    }

    /// Changes the content of a file behind everybody's back.
    pub(in super::super) fn tamper(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let inode = world.find(path).unwrap();
        match world.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => change(&mut file.seen),
            _ => panic!("{path} is no file"),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// Counts a call and has it fail if it should. Whether it is to be done by half.
    fn call(&mut self) -> io::Result<bool> {
        self.calls += 1;
        if self.stopped {
            return Err(dead());
        }
        match self.trouble {
            Some((at, trouble)) if at + 1 == self.calls => match trouble {
                Trouble::Error(errno) => Err(errno.into()),
                Trouble::Short => Ok(true),
            },
            _ => Ok(false),
        }
    }

    /// As [`call`](Self::call), for one that changes something.
    fn change(&mut self) -> io::Result<bool> {
        if self.stop == Some(self.changes) {
            self.stopped = true;
        }
        let half = self.call()?;
        self.changes += 1;
        for inode in std::mem::take(&mut self.late) {
            self.flush_file(inode);
        }
        Ok(half)
    }

    fn find(&self, path: &str) -> io::Result<u64> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = *self.folder(at)?.seen.get(part).ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    fn folder(&self, inode: u64) -> io::Result<&Folder> {
        match &self.inodes[&inode] {
            Inode::Folder(folder) => Ok(folder),
            Inode::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn folder_mut(&mut self, inode: u64) -> io::Result<&mut Folder> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::Folder(folder)) => Ok(folder),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn file_mut(&mut self, inode: u64) -> &mut Contents {
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => file,
            _ => panic!("inode {inode} is no file"),
        }
    }

    /// Sets or removes an entry.
    fn set(&mut self, path: &str, inode: Option<u64>, rename: Option<u64>) -> io::Result<()> {
        let (folder, name) = split(path);
        let folder = self.find(folder)?;
        let folder = self.folder_mut(folder)?;
        let before = match inode {
            Some(inode) => folder.seen.insert(name.into(), inode),
            None => folder.seen.remove(name),
        };
        folder.changes.push((name.into(), inode, rename));
        self.link(before, -1);
        self.link(inode, 1);
        Ok(())
    }

    fn link(&mut self, inode: Option<u64>, more: i32) {
        if let Some(Inode::File(file)) = inode.and_then(|inode| self.inodes.get_mut(&inode)) {
            file.links = file.links.saturating_add_signed(more);
        }
    }

    fn flush_file(&mut self, inode: u64) {
        let file = self.file_mut(inode);
        file.durable.clone_from(&file.seen);
        file.changes.clear();
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn stat(&self, inode: u64) -> Stat {
        match &self.inodes[&inode] {
            Inode::Folder(_) => Stat {
                len: 0,
                modified: UNIX_EPOCH,
                settled: false,
                regular: false,
                linked: true,
            },
            Inode::File(file) => Stat {
                len: file.seen.len() as u64,
                modified: file.modified,
                settled: file.settled || self.mistake == Mistake::EverythingSettled,
                regular: true,
                linked: file.links > 0,
            },
        }
    }

    fn lose_power(&mut self, random: &mut Random) {
        // One loss keeps little, another one much.
        let share = random.below(5);
        // Renames whose new entry is lost keep their old one.
        let mut lost = HashSet::new();
        let mut numbers: Vec<u64> = self.inodes.keys().copied().collect();
        numbers.sort_unstable();
        for number in &numbers {
            match self.inodes.get_mut(number) {
                Some(Inode::File(file)) => file.lose_power(share, random),
                Some(Inode::Folder(folder)) => folder.choose(share, random, &mut lost),
                None => {}
            }
        }
        for number in &numbers {
            if let Some(Inode::Folder(folder)) = self.inodes.get_mut(number) {
                for (name, inode, rename) in std::mem::take(&mut folder.changes) {
                    match inode {
                        Some(inode) => drop(folder.durable.insert(name, inode)),
                        None if rename.is_some_and(|rename| lost.contains(&rename)) => {}
                        None => drop(folder.durable.remove(&name)),
                    }
                }
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
    }
}

impl Folder {
    /// Leaves only those changes that survive: of each name the first so many.
    fn choose(&mut self, share: u64, random: &mut Random, lost: &mut HashSet<u64>) {
        let mut ended = HashSet::new();
        self.changes.retain(|(name, inode, rename)| {
            let survives = !ended.contains(name) && random.below(4) < share;
            if !survives {
                ended.insert(name.clone());
                if let (Some(_), Some(rename)) = (inode, rename) {
                    lost.insert(*rename);
                }
            }
            survives
        });
    }
}

impl Contents {
    fn lose_power(&mut self, share: u64, random: &mut Random) {
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
        // The mode is written at some time, too.
        self.settled &= random.below(2) == 0;
        self.seen.clone_from(&self.durable);
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn File>> {
        let mut world = self.world();
        let inode = if how == How::Create {
            world.change()?;
            if world.find(path).is_ok() {
                return Err(Errno::EXIST.into());
            }
            let inode = world.number();
            let file = Contents {
                seen: Vec::new(),
                durable: Vec::new(),
                changes: Vec::new(),
                settled: false,
                modified: clock(&world),
                links: 0,
            };
            world.inodes.insert(inode, Inode::File(file));
            world.set(path, Some(inode), None)?;
            inode
        } else {
            world.call()?;
            world.find(path)?
        };
        let handle = world.number();
        Ok(Box::new(SimulatedFile {
            disk: self.clone(),
            inode,
            handle,
            path: path.to_owned(),
        }))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        let mut world = self.world();
        world.call()?;
        let inode = world.find(path)?;
        Ok(world.stat(inode))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut world = self.world();
        world.call()?;
        let inode = world.find(folder)?;
        Ok(world.folder(inode)?.seen.keys().cloned().collect())
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        if world.find(path).is_ok() {
            return Ok(());
        }
        let inode = world.number();
        world.inodes.insert(inode, Inode::Folder(Folder::default()));
        world.set(path, Some(inode), None)
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        let result = world.change();
        if matches!(world.mistake, Mistake::NoFolderFlush(which) if path.starts_with(which)) {
            return result.map(drop);
        }
        let inode = world.find(path)?;
        let stopped = world.stopped;
        let folder = world.folder_mut(inode)?;
        match result {
            Ok(_) => folder.durable.clone_from(&folder.seen),
            Err(error) => {
                if !stopped {
                    folder.changes.clear();
                }
                return Err(error);
            }
        }
        folder.changes.clear();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        let inode = world.find(from)?;
        let number = world.number();
        if world.mistake == Mistake::RenameBeforeFlush {
            world.late.push(inode);
        }
        world.set(to, Some(inode), Some(number))?;
        world.set(from, None, Some(number))
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        world.find(path)?;
        world.set(path, None, None)
    }

    fn now(&self) -> SystemTime {
        clock(&self.world())
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    inode: u64,
    handle: u64,
    path: String,
}

impl File for SimulatedFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        let half = world.call()?;
        let file = world.file_mut(self.inode);
        let rest = file.seen.get(offset as usize..).unwrap_or_default();
        let mut len = rest.len().min(bytes.len());
        if half && len > 1 {
            len /= 2;
        }
        bytes[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        let half = world.change()?;
        let bytes = match bytes.len() {
            len if half && len > 1 => &bytes[..len / 2],
            _ => bytes,
        };
        let modified = clock(&world);
        let file = world.file_mut(self.inode);
        put(&mut file.seen, offset as usize, bytes);
        file.changes
            .push(Change::Write(offset as usize, bytes.to_vec()));
        file.modified = modified;
        Ok(bytes.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        let file = world.file_mut(self.inode);
        file.seen.resize(len as usize, 0);
        file.changes.push(Change::Length(len as usize));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        let result = world.change();
        match world.mistake {
            Mistake::NoFileFlush(which) if self.path.ends_with(which) => {
                return result.map(drop);
            }
            Mistake::RenameBeforeFlush => return result.map(drop),
            _ => {}
        }
        match result {
            Ok(_) => world.flush_file(self.inode),
            Err(error) => {
                if !world.stopped {
                    world.file_mut(self.inode).changes.clear();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        world.file_mut(self.inode).settled = true;
        Ok(())
    }

    fn touch(&self, when: SystemTime) -> io::Result<()> {
        let mut world = self.disk.world();
        world.call()?;
        world.file_mut(self.inode).modified = when;
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let mut world = self.disk.world();
        world.call()?;
        Ok(world.stat(self.inode))
    }

    fn lock(&self, kind: Lock) -> io::Result<()> {
        let mut world = self.disk.world();
        world.call()?;
        let other = world.locks.iter().find(|(inode, _, held)| {
            *inode == self.inode && (kind == Lock::Exclusive || *held == Lock::Exclusive)
        });
        assert!(other.is_none(), "waits for itself: {}", self.path);
        world.locks.push((self.inode, self.handle, kind));
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut world = self.disk.world();
        world.call()?;
        if world.locks.iter().any(|(inode, _, _)| *inode == self.inode) {
            return Ok(false);
        }
        world.locks.push((self.inode, self.handle, Lock::Exclusive));
        Ok(true)
    }

    /// What was not flushed may be durable all the same.
    fn begin_flush(&self, _: u64, _: u64) {}

    fn will_need(&self, _: u64, _: u64) {}
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut world = self.disk.world();
        let handle = self.handle;
        world.locks.retain(|(_, holder, _)| *holder != handle);
        if matches!(world.mistake, Mistake::NoFile(which) if self.path.ends_with(which)) {
            let _ = world.set(&self.path, None, None);
        }
    }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// A second for each change.
fn clock(world: &World) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + world.changes)
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(in super::super) struct Random(pub(in super::super) u64);

impl Random {
    pub(in super::super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(in super::super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
