//! A disk in memory that forgets what was not flushed.
//!
//! The model is what POSIX promises and no more. What a call wrote can be seen at once; it survives a loss of
//! power only if the file was flushed afterwards, and an entry of a folder only if that folder was. What was
//! not flushed survives or not, each sector of 512 bytes and each entry by itself and in any order; a rename
//! is never half done. A flush that fails writes some of what it should have and forgets the rest, which can
//! be seen all the same: the next flush succeeds and writes what changed since, as real kernels have it.
//!
//! | file | what |
//! |---|---|
//! | `world` | files and folders: what is seen, what is durable |
//! | `faults` | calls that fail, processes that die, and mistakes made on purpose |
//! | `losses` | what a failed flush and a loss of power leave |
//! | `calls` | the system calls |
#![allow(missing_docs, clippy::new_without_default, reason = "tests alone see it")]

mod calls;
mod faults;
mod losses;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

pub use self::faults::Mistake;
pub(crate) use self::faults::Trouble;
pub use self::losses::Random;
use self::world::{Inode, ROOT, World};
use super::super::{FileOptions, FileStore, root};
use crate::error::StoreError;

/// A handle on a simulated disk. Clones are the same disk; [`copy`](Self::copy) makes another one.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    world: Arc<Mutex<World>>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    flushes: usize,
}

/// What somebody else does just before a folder is listed or a file opened.
struct Meanwhile {
    path: String,
    act: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

impl SimulatedDisk {
    pub fn new() -> Self {
        Self::of(World::new())
    }

    /// Another disk with the same content, unflushed things included, and no open files.
    pub fn copy(&self) -> Self {
        Self::of(self.world().copy())
    }

    /// A disk with a new store in it, and nothing in that.
    ///
    /// # Panics
    /// If the store cannot be made.
    pub fn with_store() -> Self {
        let disk = Self::new();
        root::create(&disk).unwrap();
        disk.lose_power(0)
    }

    /// Opens the store in it.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn open_store(&self) -> Result<FileStore, StoreError> {
        FileStore::on_disk(Arc::new(self.clone()), "", FileOptions::default())
    }

    fn of(world: World) -> Self {
        Self {
            world: Arc::new(Mutex::new(world)),
            meanwhile: Arc::default(),
            // One by one, faults and losses come at the same call each time.
            flushes: 1,
        }
    }

    /// Has so many flushes asked for at once.
    pub fn with_flushes(mut self, flushes: usize) -> Self {
        self.flushes = flushes;
        self
    }

    pub fn with_mistake(self, mistake: Mistake) -> Self {
        self.world().faults.mistake = mistake;
        self
    }

    /// What goes wrong from the call of this number on, counted from 0 of this disk's life.
    pub fn trouble(&self, call: u64, trouble: Trouble) {
        self.world().faults.trouble = Some((call, trouble));
    }

    /// The cause of what went wrong is gone.
    pub fn no_trouble(&self) {
        self.world().faults.trouble = None;
    }

    /// From now on nothing can be changed, and the system says so.
    pub fn write_protect(&self, errno: Errno) {
        self.world().faults.protected = Some(errno);
    }

    /// From now on there is no room for anything more, and the system says so.
    pub fn fill(&self, errno: Errno) {
        self.world().faults.full = Some(errno);
    }

    /// From now on this byte of a file cannot be read.
    pub fn spoil(&self, path: &str, at: usize) {
        let mut world = self.world();
        let inode = world.find(path).unwrap();
        world.faults.bad.push((inode, at));
    }

    /// From now on all files are another user's.
    pub fn give_away(&self) {
        self.world().faults.foreign = true;
    }

    /// The process dies instead of making this change.
    pub fn stop_at(&self, change: u64) {
        self.world().faults.stop = Some(change);
    }

    /// It was another process that died, or met what went wrong.
    pub fn go_on(&self) {
        let mut world = self.world();
        world.faults.stop = None;
        world.faults.stopped = false;
        world.faults.trouble = None;
    }

    pub fn is_stopped(&self) -> bool {
        self.world().faults.stopped
    }

    /// Number of calls, and of those that change something.
    pub fn counts(&self) -> (u64, u64) {
        let world = self.world();
        (world.faults.calls, world.faults.changes)
    }

    /// The disk as it is found after a loss of power. The seed says what survives.
    pub fn lose_power(&self, seed: u64) -> Self {
        let copy = self.copy();
        copy.world().lose_power(&mut Random(seed));
        copy
    }

    /// All regular files with their content.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
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

    /// The most bytes that all files together have taken since somebody asked.
    pub fn most_bytes(&self) -> u64 {
        let mut world = self.world();
        let now = world.bytes();
        std::mem::replace(&mut world.most_bytes, now).max(now)
    }

    /// Somebody else does something just before this folder is listed, or this file opened, the next time.
    pub fn before(&self, path: &str, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile() = Some(Meanwhile { path: path.to_owned(), act: Box::new(act) });
    }

    /// Nobody has said of any file that its entry is durable.
    pub fn unsettle(&self) {
        for inode in self.world().inodes.values_mut() {
            if let Inode::File(file) = inode {
                file.settled = false;
            }
        }
    }

    /// Changes the content of a file behind everybody's back.
    pub fn tamper(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let inode = world.find(path).unwrap();
        change(&mut world.file_mut(inode).seen);
    }

    /// Number of files that no folder lists and somebody holds open.
    pub fn pinned(&self) -> usize {
        let world = self.world();
        let open = world.open.values();
        let open: std::collections::HashSet<_> = open.collect();
        open.into_iter().filter(|inode| matches!(&world.inodes[inode], Inode::File(file) if file.links == 0)).count()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn others_come_first(&self, path: &str) {
        let meanwhile = self.meanwhile().take_if(|other| other.path == path);
        if let Some(meanwhile) = meanwhile {
            (meanwhile.act)();
        }
    }

    fn meanwhile(&self) -> MutexGuard<'_, Option<Meanwhile>> {
        self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
