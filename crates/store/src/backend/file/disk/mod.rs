//! The system calls of a file store, as a trait, so that tests can put a simulated disk in their place.
//!
//! Paths are relative to the root and made by [`super::paths`] alone, of fixed words and hex digits. Nothing
//! inside the root is reached through a symbolic link.

mod real;
#[cfg(any(test, feature = "simulated"))]
pub(crate) mod simulated;

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

pub(super) use real::{Access, RealDisk};

use crate::error::StoreError;

/// One folder and what is below it.
pub(super) trait Disk: fmt::Debug + Send + Sync {
    /// Opens a regular file, or the folder `how` says.
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn File>>;

    /// What lies at `path`, without following a link.
    fn stat(&self, path: &str) -> io::Result<Stat>;

    /// The names in a folder, in no order.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes a folder. Not an error if there is one.
    fn make_folder(&self, path: &str) -> io::Result<()>;

    /// Makes the entries of a folder durable.
    fn sync_folder(&self, path: &str) -> io::Result<()>;

    /// How many flushes are best asked for at once, from as many threads.
    fn flushes(&self) -> usize;

    /// Moves a file, in the place of another one if there is one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Gives a file a second name, which nothing has.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn unlink(&self, path: &str) -> io::Result<()>;

    /// The wall clock, in which files carry when they were last used.
    fn now(&self) -> SystemTime;
}

/// An open file. Dropping it gives its lock back.
pub(super) trait File: fmt::Debug + Send + Sync {
    /// Reads at an offset; fewer bytes than asked for are not an error.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at an offset; fewer bytes than given are not an error.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the data and the length durable.
    fn sync(&self) -> io::Result<()>;

    /// Says in the file's mode that its entry in its folder is durable, by taking the write bits away.
    fn settle(&self) -> io::Result<()>;

    /// Sets when the file was last used.
    fn touch(&self, when: SystemTime) -> io::Result<()>;

    /// What it is.
    fn stat(&self) -> io::Result<Stat>;

    /// Waits for the lock of this file, for this long at most.
    ///
    /// # Errors
    /// `TimedOut` if somebody holds it for longer.
    fn lock(&self, kind: Lock, patience: Duration) -> io::Result<()>;

    /// Takes the exclusive lock if nobody has any.
    fn try_lock(&self) -> io::Result<bool>;

    /// A hint that these bytes, just written, will be flushed soon: the disk may begin.
    fn begin_flush(&self, offset: u64, len: u64);

    /// A hint that these bytes will be read.
    fn will_need(&self, offset: u64, len: u64);
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// To read an existing file.
    Read,
    /// To read and write an existing file.
    Write,
    /// To write a file that does not exist yet.
    Create,
    /// To lock an existing folder.
    Folder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Shared,
    Exclusive,
}

/// What is known of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// Length in bytes.
    pub(super) len: u64,
    /// When it was last used.
    pub(super) modified: SystemTime,
    /// Whether its entry is known to be durable: see [`File::settle`].
    pub(super) settled: bool,
    /// Whether it is a regular file.
    pub(super) regular: bool,
    /// Whether any folder still lists it.
    pub(super) linked: bool,
}

impl dyn File + '_ {
    /// Reads exactly that many bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before.
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

    /// Writes all bytes.
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

    /// Exactly that many bytes, which are not allocated before the file is seen to have them.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before.
    pub(super) fn read_vec_at(&self, len: u64, offset: u64) -> io::Result<Vec<u8>> {
        let there = self.stat()?.len;
        if offset.checked_add(len).is_none_or(|end| end > there) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = zeroes(len)?;
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The whole file, if it is not longer than `most`: a file can say that it is long without anything in it.
    ///
    /// # Errors
    /// `InvalidData` if it is.
    pub(super) fn read_all(&self, most: u64) -> io::Result<Vec<u8>> {
        let len = self.stat()?.len;
        if len > most {
            return Err(too_long(len, most));
        }
        self.read_vec_at(len, 0)
    }
}

/// What says that a file, or a part of it, is longer than it can be.
pub(super) fn too_long(len: u64, most: u64) -> io::Error {
    let why = format!("it has {len} bytes, and {most} are the most");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A buffer of this length, or an error where there is no memory for it.
fn zeroes(len: u64) -> io::Result<Vec<u8>> {
    /// What a system that runs at all has room for. Memory that comes as zeroes need not be written.
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

/// Whether the system says that nothing can be written here, for now or for this user; reading goes on.
fn is_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    is_full(error) || matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

/// Whether the system says that there is no room. Things can be moved and removed all the same.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), QuotaExceeded | StorageFull)
}

/// Whether it is this one place of the disk that cannot be read.
pub(super) fn is_bad_place(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// That something could not be tidied up is no reason not to read.
pub(super) fn unless_unwritable(tidied: Result<(), StoreError>) -> Result<(), StoreError> {
    match tidied {
        Err(StoreError::Io { source, .. }) if is_unwritable(&source) => Ok(()),
        other => other,
    }
}

/// Opens a file to write it, or to read it if it cannot be written: locks can be taken on it all the same, and
/// writing it is an error then.
pub(super) fn open_to_lock(disk: &dyn Disk, path: &str) -> io::Result<Box<dyn File>> {
    match disk.open(path, How::Write) {
        Err(error) if is_unwritable(&error) => disk.open(path, How::Read),
        other => other,
    }
}
