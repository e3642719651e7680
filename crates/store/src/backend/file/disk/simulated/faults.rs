//! Failing calls, dying processes, and deliberate mistakes.

use std::io;

use rustix::io::Errno;

use super::world::World;

/// A fault that occurs at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The call fails and does nothing. Only a flush does some of its work and forgets the rest.
    Error(Errno),
    /// A write or read does half of its work.
    Short,
    /// The next flushes, this many, fail.
    Flushes(u64, Errno),
}

/// A mistake in using the disk that a store could make. The disk makes it in the store's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    #[default]
    None,
    /// Folders whose path has this prefix are not flushed.
    NoFolderFlush(&'static str),
    /// Files whose path has this suffix are not flushed.
    NoFileFlush(&'static str),
    /// Files are flushed after they are moved to their place, not before.
    RenameBeforeFlush,
    /// Removals are not durable after a flush of their folder.
    NoRemovalFlush,
    /// Every visible file counts as durable.
    EverythingSettled,
    /// Files whose path has this suffix are removed when they are closed.
    NoFile(&'static str),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) calls: u64,
    pub(super) changes: u64,
    /// The fault, and the number of the call from which on it occurs.
    pub(super) trouble: Option<(u64, Trouble)>,
    pub(super) stop: Option<u64>,
    pub(super) stopped: bool,
    /// The error of every change, if the disk is write-protected.
    pub(super) protected: Option<Errno>,
    /// The error of every growth, if the disk is full. Existing files can be changed, moved and removed.
    pub(super) full: Option<Errno>,
    /// Unreadable bytes: inode and offset.
    pub(super) bad: Vec<(u64, usize)>,
    /// Whether the files belong to another user, so that their modes cannot be changed.
    pub(super) foreign: bool,
    pub(super) mistake: Mistake,
    /// Files that [`Mistake::RenameBeforeFlush`] flushes too late.
    pub(super) late: Vec<u64>,
}

impl Faults {
    /// Returns the faults for a later process on the same disk: the mistake stays, since it is in the program.
    pub(super) fn copy(&self) -> Self {
        Self { mistake: self.mistake, ..Self::default() }
    }

    pub(super) fn read(&self, inode: u64, offset: usize, len: usize) -> io::Result<()> {
        let within = |(bad, at): &(u64, usize)| *bad == inode && (offset..offset + len).contains(at);
        match self.bad.iter().any(within) {
            true => Err(Errno::IO.into()),
            false => Ok(()),
        }
    }

    pub(super) fn grow(&self) -> io::Result<()> {
        self.full.map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn refuse(&mut self) -> io::Result<()> {
        self.protected.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

impl World {
    /// Counts a call and makes it fail if it should. Returns whether to do half of it.
    pub(super) fn call(&mut self) -> io::Result<bool> {
        self.faults.calls += 1;
        if self.faults.stopped {
            return Err(io::Error::other("the process is dead"));
        }
        match self.faults.trouble {
            Some((at, trouble)) if at + 1 == self.faults.calls => match trouble {
                Trouble::Error(errno) => Err(errno.into()),
                Trouble::Short => Ok(true),
                Trouble::Flushes(..) => Ok(false),
            },
            _ => Ok(false),
        }
    }

    /// Counts a call that changes something, like [`call`](Self::call).
    pub(super) fn change(&mut self) -> io::Result<bool> {
        let faults = &mut self.faults;
        if faults.stop == Some(faults.changes) {
            faults.stopped = true;
        }
        let half = self.call()?;
        self.faults.refuse()?;
        self.faults.changes += 1;
        for inode in std::mem::take(&mut self.faults.late) {
            self.flush_file(inode);
        }
        self.most_bytes = self.most_bytes.max(self.bytes());
        Ok(half)
    }

    /// Counts a call that needs a writable disk, like [`call`](Self::call).
    pub(super) fn write_call(&mut self) -> io::Result<()> {
        self.call()?;
        self.faults.refuse()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.change()?;
        match &mut self.faults.trouble {
            Some((at, Trouble::Flushes(left, errno))) if *at < self.faults.calls && *left > 0 => {
                *left -= 1;
                Err((*errno).into())
            }
            _ => Ok(()),
        }
    }
}
