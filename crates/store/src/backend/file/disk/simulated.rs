//! A disk in memory that forgets what was not flushed.
//!
//! The model allows what POSIX allows. A write is visible at once. It survives a loss of power only if the file was
//! flushed afterwards, and a folder's entry only if the folder was. Each unflushed sector of 512 bytes and each
//! unflushed entry survives or not on its own, in any order; a rename is never half done. A failed flush writes some of
//! its data and forgets the rest, which stays visible: the next flush succeeds and writes only later changes, as real
//! kernels do.
//!
//! | file | what |
//! |---|---|
//! | `world` | files and folders: their visible and their durable state |
//! | `faults` | failing calls, dying processes, and deliberate mistakes |
//! | `losses` | the effects of a failed flush and a loss of power |
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

/// A handle on a simulated disk. Clones share the disk; [`copy`](Self::copy) makes another one.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    world: Arc<Mutex<World>>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    flushes: usize,
}

/// An action of another process, just before a folder is listed or a file opened.
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

    /// Returns another disk with the same content, including unflushed data, and no open files.
    pub fn copy(&self) -> Self {
        Self::of(self.world().copy())
    }

    /// Returns a disk with a new, empty store.
    ///
    /// # Panics
    /// If the store cannot be created.
    pub fn with_store() -> Self {
        let disk = Self::new();
        root::create(&disk).unwrap();
        disk.lose_power(0)
    }

    /// Opens the store on this disk.
    ///
    /// # Errors
    /// The errors of [`FileStore::open`].
    pub fn open_store(&self) -> Result<FileStore, StoreError> {
        FileStore::on_disk(Arc::new(self.clone()), "", FileOptions::default())
    }

    fn of(world: World) -> Self {
        Self {
            world: Arc::new(Mutex::new(world)),
            meanwhile: Arc::default(),
            // Sequential flushes make faults and losses hit the same call each time.
            flushes: 1,
        }
    }

    /// Sets how many flushes run in parallel.
    pub fn with_flushes(mut self, flushes: usize) -> Self {
        self.flushes = flushes;
        self
    }

    pub fn with_mistake(self, mistake: Mistake) -> Self {
        self.world().faults.mistake = mistake;
        self
    }

    /// Makes a fault occur from the call of this number on, counted from 0 since the disk was made.
    pub fn trouble(&self, call: u64, trouble: Trouble) {
        self.world().faults.trouble = Some((call, trouble));
    }

    /// Removes the fault.
    pub fn no_trouble(&self) {
        self.world().faults.trouble = None;
    }

    /// Makes every further change fail with this error.
    pub fn write_protect(&self, errno: Errno) {
        self.world().faults.protected = Some(errno);
    }

    /// Makes every further growth fail with this error.
    pub fn fill(&self, errno: Errno) {
        self.world().faults.full = Some(errno);
    }

    /// Makes this byte of a file unreadable.
    pub fn spoil(&self, path: &str, at: usize) {
        let mut world = self.world();
        let inode = world.find(path).unwrap();
        world.faults.bad.push((inode, at));
    }

    /// Makes all files belong to another user.
    pub fn give_away(&self) {
        self.world().faults.foreign = true;
    }

    /// Makes the process die instead of making this change.
    pub fn stop_at(&self, change: u64) {
        self.world().faults.stop = Some(change);
    }

    /// Continues as another process, without the fault.
    pub fn go_on(&self) {
        let mut world = self.world();
        world.faults.stop = None;
        world.faults.stopped = false;
        world.faults.trouble = None;
    }

    pub fn is_stopped(&self) -> bool {
        self.world().faults.stopped
    }

    /// Returns the number of calls, and of those that change something.
    pub fn counts(&self) -> (u64, u64) {
        let world = self.world();
        (world.faults.calls, world.faults.changes)
    }

    /// Returns the disk after a loss of power. The seed determines what survives.
    pub fn lose_power(&self, seed: u64) -> Self {
        let copy = self.copy();
        copy.world().lose_power(&mut Random(seed));
        copy
    }

    /// Returns all regular files with their content.
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

    /// Returns the peak of the total file size since the last call.
    pub fn most_bytes(&self) -> u64 {
        let mut world = self.world();
        let now = world.bytes();
        std::mem::replace(&mut world.most_bytes, now).max(now)
    }

    /// Runs `act`, as another process would, just before the next listing of this folder or opening of this file.
    pub fn before(&self, path: &str, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile() = Some(Meanwhile { path: path.to_owned(), act: Box::new(act) });
    }

    /// Marks every file's entry as not known to be durable.
    pub fn unsettle(&self) {
        for inode in self.world().inodes.values_mut() {
            if let Inode::File(file) = inode {
                file.settled = false;
            }
        }
    }

    /// Changes the content of a file, bypassing the store.
    pub fn tamper(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let inode = world.find(path).unwrap();
        change(&mut world.file_mut(inode).seen);
    }

    /// Returns the number of files that are open and have no entry in any folder.
    pub fn pinned(&self) -> usize {
        let world = self.world();
        let open = world.open.values();
        let open: std::collections::HashSet<_> = open.collect();
        open.into_iter().filter(|inode| matches!(&world.inodes[inode], Inode::File(file) if file.links == 0)).count()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act_for_others(&self, path: &str) {
        let meanwhile = self.meanwhile().take_if(|other| other.path == path);
        if let Some(meanwhile) = meanwhile {
            (meanwhile.act)();
        }
    }

    fn meanwhile(&self) -> MutexGuard<'_, Option<Meanwhile>> {
        self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
