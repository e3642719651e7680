//! The system calls of a simulated disk.

use std::io;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::super::{Disk, File, How, Lock, Stat};
use super::SimulatedDisk;
use super::faults::Mistake;
use super::world::{Change, put};

impl Disk for SimulatedDisk {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn File>> {
        self.act_for_others(path);
        let mut world = self.world();
        let inode = match how {
            How::Create => {
                world.change()?;
                if world.find(path).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                world.faults.grow()?;
                let inode = world.create_file();
                world.set(path, Some(inode), None)?;
                inode
            }
            How::Write => {
                world.write_call()?;
                world.find(path)?
            }
            How::Read | How::Folder => {
                world.call()?;
                world.find(path)?
            }
        };
        let handle = world.number();
        world.open.insert(handle, inode);
        Ok(Box::new(SimulatedFile { disk: self.clone(), inode, handle, path: path.to_owned() }))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        let mut world = self.world();
        world.call()?;
        let inode = world.find(path)?;
        Ok(world.stat(inode))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.act_for_others(folder);
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
        world.faults.grow()?;
        let inode = world.create_folder();
        world.set(path, Some(inode), None)
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        let result = world.flush();
        if matches!(world.faults.mistake, Mistake::NoFolderFlush(which) if path.starts_with(which)) {
            return result;
        }
        let inode = world.find(path)?;
        match result {
            Ok(()) => world.flush_folder(inode),
            Err(error) => {
                world.fail_to_flush(inode);
                Err(error)
            }
        }
    }

    fn flushes(&self) -> usize {
        self.flushes
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        let inode = world.find(from)?;
        if world.find(to).is_ok_and(|other| other == inode) {
            // POSIX keeps both names in this case.
            return Ok(());
        }
        let number = world.number();
        if world.faults.mistake == Mistake::RenameBeforeFlush {
            world.faults.late.push(inode);
        }
        world.set(to, Some(inode), Some(number))?;
        world.set(from, None, Some(number))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        let inode = world.find(from)?;
        if world.find(to).is_ok() {
            return Err(Errno::EXIST.into());
        }
        world.set(to, Some(inode), None)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let mut world = self.world();
        world.change()?;
        world.find(path)?;
        world.set(path, None, None)
    }

    fn now(&self) -> SystemTime {
        self.world().clock()
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
        world.faults.read(self.inode, offset as usize, bytes.len())?;
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
        let modified = world.clock();
        if offset as usize + bytes.len() > world.file_mut(self.inode).seen.len() {
            world.faults.grow()?;
        }
        let file = world.file_mut(self.inode);
        put(&mut file.seen, offset as usize, bytes);
        file.changes.push(Change::Write(offset as usize, bytes.to_vec()));
        file.modified = modified;
        Ok(bytes.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        if len as usize > world.file_mut(self.inode).seen.len() {
            world.faults.grow()?;
        }
        let file = world.file_mut(self.inode);
        file.seen.resize(len as usize, 0);
        file.changes.push(Change::Length(len as usize));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        let result = world.flush();
        match world.faults.mistake {
            Mistake::NoFileFlush(which) if self.path.ends_with(which) => return result,
            Mistake::RenameBeforeFlush => return result,
            _ => {}
        }
        match result {
            Ok(()) => world.flush_file(self.inode),
            Err(_) => world.fail_to_flush(self.inode),
        }
        result
    }

    fn settle(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.change()?;
        if world.faults.foreign {
            return Err(Errno::PERM.into());
        }
        world.file_mut(self.inode).settled = true;
        Ok(())
    }

    fn touch(&self, when: SystemTime) -> io::Result<()> {
        let mut world = self.disk.world();
        world.write_call()?;
        world.file_mut(self.inode).modified = when;
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let mut world = self.disk.world();
        world.call()?;
        Ok(world.stat(self.inode))
    }

    fn lock(&self, kind: Lock, _: Duration) -> io::Result<()> {
        let mut world = self.disk.world();
        world.call()?;
        let this = thread::current().id();
        while let Some((.., holder)) = world
            .locks
            .iter()
            .find(|(inode, _, held, _)| *inode == self.inode && (kind == Lock::Exclusive || *held == Lock::Exclusive))
        {
            assert_ne!(*holder, this, "waits for itself: {}", self.path);
            drop(world);
            thread::yield_now();
            world = self.disk.world();
        }
        world.locks.push((self.inode, self.handle, kind, this));
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut world = self.disk.world();
        world.call()?;
        if world.locks.iter().any(|(inode, ..)| *inode == self.inode) {
            return Ok(false);
        }
        let this = thread::current().id();
        world.locks.push((self.inode, self.handle, Lock::Exclusive, this));
        Ok(true)
    }

    /// Unflushed data may survive anyway, so there is nothing to do.
    fn begin_flush(&self, _: u64, _: u64) {}

    fn will_need(&self, _: u64, _: u64) {}
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut world = self.disk.world();
        let handle = self.handle;
        world.open.remove(&handle);
        world.locks.retain(|(_, holder, ..)| *holder != handle);
        if matches!(world.faults.mistake, Mistake::NoFile(which) if self.path.ends_with(which)) {
            let _ = world.set(&self.path, None, None);
        }
    }
}
