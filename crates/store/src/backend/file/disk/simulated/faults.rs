//! Calls that fail, processes that die, and mistakes made on purpose.

use std::io;

use rustix::io::Errno;

use super::world::World;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The call fails and does nothing, apart from a flush, which does some of it and forgets the rest.
    Error(Errno),
    /// A write or read does half of it.
    Short,
    /// The next so many flushes fail.
    Flushes(u64, Errno),
}

/// Mistakes that a store could make in using the disk, made for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    #[default]
    None,
    /// Folders whose path begins so are not flushed.
    NoFolderFlush(&'static str),
    /// Files whose path ends so are not flushed.
    NoFileFlush(&'static str),
    /// Files are moved to their place first and flushed then.
    RenameBeforeFlush,
    /// Nobody waits until it is durable that something was removed.
    NoRemovalFlush,
    /// Whatever can be seen counts as durable.
    EverythingSettled,
    /// Files whose path ends so are never left behind.
    NoFile(&'static str),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) calls: u64,
    pub(super) changes: u64,
    /// From which call on what goes wrong.
    pub(super) trouble: Option<(u64, Trouble)>,
    /// At which change the process dies.
    pub(super) stop: Option<u64>,
    pub(super) stopped: bool,
    /// Nothing can be changed.
    pub(super) protected: Option<Errno>,
    /// There is no room: nothing can be made or extended. What is there can be changed, moved and removed.
    pub(super) full: Option<Errno>,
    /// Bytes that the disk cannot read: number of the inode, offset.
    pub(super) bad: Vec<(u64, usize)>,
    /// The files are another user's: their modes cannot be changed.
    pub(super) foreign: bool,
    pub(super) mistake: Mistake,
    /// Files that the mistake will flush when it is too late.
    pub(super) late: Vec<u64>,
}

impl Faults {
    /// Those of another life of the same store: the mistake is in its program.
    pub(super) fn copy(&self) -> Self {
        Self { mistake: self.mistake, ..Self::default() }
    }

    /// Takes note that these bytes are read.
    pub(super) fn read(&self, inode: u64, offset: usize, len: usize) -> io::Result<()> {
        let within = |(bad, at): &(u64, usize)| *bad == inode && (offset..offset + len).contains(at);
        match self.bad.iter().any(within) {
            true => Err(Errno::IO.into()),
            false => Ok(()),
        }
    }

    /// Takes note that something is made or extended.
    pub(super) fn grow(&self) -> io::Result<()> {
        self.full.map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Takes note that a call is made at a disk whose nature forbids it.
    fn refuse(&mut self) -> io::Result<()> {
        self.protected.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

impl World {
    /// Counts a call and has it fail if it should. Whether it is to be done by half.
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

    /// As [`call`](Self::call), for one that changes something.
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

    /// As [`call`](Self::call), for one that only a disk that can be written allows.
    pub(super) fn write_call(&mut self) -> io::Result<()> {
        self.call()?;
        self.faults.refuse()
    }

    /// As [`change`](Self::change), for a flush.
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
