//! The system calls of a file store as a trait, so that tests can use a simulated disk.
//!
//! Paths are relative to the root. Only [`super::paths`] makes them, of fixed words and hex digits. No symbolic link
//! inside the root is followed.

mod real;
#[cfg(any(test, feature = "simulated"))]
pub(crate) mod simulated;

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

pub(super) use real::{Access, RealDisk};

use crate::error::StoreError;

pub(super) trait Disk: fmt::Debug + Send + Sync {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn File>>;

    /// Returns the metadata of `path`, without following a link.
    fn stat(&self, path: &str) -> io::Result<Stat>;

    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Creates a folder. An existing one is no error.
    fn make_folder(&self, path: &str) -> io::Result<()>;

    fn sync_folder(&self, path: &str) -> io::Result<()>;

    /// Returns how many parallel flushes are fastest.
    fn flushes(&self) -> usize;

    /// Moves a file, and replaces the one at `to` if there is one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Gives a file a second name, which must be unused.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;

    fn unlink(&self, path: &str) -> io::Result<()>;

    /// Returns the wall clock's time, which files carry as their last-used time.
    fn now(&self) -> SystemTime;
}

/// An open file. Dropping it releases its lock.
pub(super) trait File: fmt::Debug + Send + Sync {
    /// Reads at an offset. It may read fewer bytes than requested.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at an offset. It may write fewer bytes than passed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Flushes the data and the length.
    fn sync(&self) -> io::Result<()>;

    /// Marks the file's entry in its folder as durable, by clearing the write bits of its mode.
    fn settle(&self) -> io::Result<()>;

    fn touch(&self, when: SystemTime) -> io::Result<()>;

    fn stat(&self) -> io::Result<Stat>;

    /// # Errors
    /// `TimedOut` if another holder keeps it for longer.
    fn lock(&self, kind: Lock, timeout: Duration) -> io::Result<()>;

    fn try_lock(&self) -> io::Result<bool>;

    /// Hints that these bytes, just written, will be flushed soon, so that the disk may start.
    fn begin_flush(&self, offset: u64, len: u64);

    fn will_need(&self, offset: u64, len: u64);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Read,
    Write,
    Create,
    /// Opens an existing folder to lock it.
    Folder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Shared,
    Exclusive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) len: u64,
    pub(super) modified: SystemTime,
    /// Whether the file's entry is known to be durable: see [`File::settle`].
    pub(super) settled: bool,
    pub(super) regular: bool,
    pub(super) linked: bool,
}

impl dyn File + '_ {
    pub(super) fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    bytes = &mut bytes[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads this many bytes. The buffer is allocated only after the file is known to have them.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends too early.
    pub(super) fn read_vec_at(&self, len: u64, offset: u64) -> io::Result<Vec<u8>> {
        let there = self.stat()?.len;
        if offset.checked_add(len).is_none_or(|end| end > there) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = zeroes(len)?;
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Reads the whole file, if it is not longer than `most`. A sparse file may claim any length.
    ///
    /// # Errors
    /// `InvalidData` if it is longer.
    pub(super) fn read_all(&self, most: u64) -> io::Result<Vec<u8>> {
        let len = self.stat()?.len;
        if len > most {
            return Err(too_long(len, most));
        }
        self.read_vec_at(len, 0)
    }
}

pub(super) fn too_long(len: u64, most: u64) -> io::Error {
    let why = format!("it has {len} bytes, and {most} are the most");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn zeroes(len: u64) -> io::Result<Vec<u8>> {
    /// Up to this size an allocation is assumed to succeed. Memory that the system zeroes need not be written.
    const SMALL: usize = 16 << 20;
    let len = usize::try_from(len).map_err(io::Error::other)?;
    if len <= SMALL {
        return Ok(vec![0; len]);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Tells whether the error means that writing is impossible, for now or for this user, while reading works.
fn is_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    is_full(error) || matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), QuotaExceeded | StorageFull)
}

pub(super) fn is_bad_block(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Ignores the error of a recovery that could not write, because the store can still be read.
pub(super) fn unless_unwritable(tidied: Result<(), StoreError>) -> Result<(), StoreError> {
    match tidied {
        Err(StoreError::Io { source, .. }) if is_unwritable(&source) => Ok(()),
        other => other,
    }
}

/// Opens a file for writing, or for reading if it is not writable. Locks work on both; writes to the latter fail.
pub(super) fn open_to_lock(disk: &dyn Disk, path: &str) -> io::Result<Box<dyn File>> {
    match disk.open(path, How::Write) {
        Err(error) if is_unwritable(&error) => disk.open(path, How::Read),
        other => other,
    }
}
