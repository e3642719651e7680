//! Memory behind a file descriptor whose size can no longer change.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// The seals without which a mapping of a peer's memory can be turned into a SIGBUS (by shrinking
/// the file under it). [`keep`] adds what holes take.
pub(super) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The seal without which pages can be taken out of the memory: nobody punches a hole where nobody may write but
/// through mappings that were there before (Linux 5.1).
const CONTENT_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// `TMPFS_MAGIC` of `linux/magic.h`: what an ordinary memfd lies on.
///
/// A memfd of huge pages (`HUGETLBFS_MAGIC`) carries the same seals, and yet its owner can take
/// pages back by punching a hole; touching them again is a SIGBUS where the pool is empty.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What is wrong with a descriptor that claims to be a sealed memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemfdFault {
    /// It is no memfd of ordinary pages, or cannot be asked.
    #[error("the descriptor is no memfd of ordinary pages")]
    NotMemfd,
    /// A seal is missing.
    #[error("the memfd lacks seals: {demanded:#x} demanded, {found:#x} found")]
    Seals { demanded: u32, found: u32 },
    /// Its size is not what was announced.
    #[error("the memfd has {found} bytes, announced were {announced}")]
    Size { announced: u64, found: u64 },
}

/// Creates a memfd of `len` bytes for good.
pub(crate) fn create(name: &str, len: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS)?;
    Ok(fd)
}

/// Has every page of a memory of `len` bytes be there for good. Both sides call it when both have mapped it, as nobody
/// can any more to write to it. Where the system has no memory to give (strict overcommit), this is the error that would
/// otherwise be a SIGBUS at the first touch.
pub(crate) fn keep(fd: impl AsFd, len: u64) -> io::Result<()> {
    // The other side may have been first.
    let sealed = rustix::fs::fcntl_add_seals(&fd, CONTENT_SEALS);
    let found = rustix::fs::fcntl_get_seals(&fd)?;
    if !found.contains(SealFlags::FUTURE_WRITE) {
        sealed?;
    }
    let whole = || rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len);
    Ok(rustix::io::retry_on_intr(whole)?)
}

/// Checks a descriptor that came from a peer: an ordinary memfd, sealed in size, of exactly
/// `announced` bytes. What has passed can be mapped; when it is [kept](keep), no access inside faults.
pub(crate) fn check(fd: impl AsFd, announced: u64) -> Result<(), MemfdFault> {
    let fs = rustix::fs::fstatfs(&fd).map_err(|_| MemfdFault::NotMemfd)?;
    // The type of the field depends on the platform.
    #[allow(clippy::unnecessary_cast)]
    if fs.f_type as i64 != TMPFS_MAGIC {
        return Err(MemfdFault::NotMemfd);
    }
    let found = rustix::fs::fcntl_get_seals(&fd).map_err(|_| MemfdFault::NotMemfd)?;
    if !found.contains(SIZE_SEALS) {
        return Err(MemfdFault::Seals { demanded: SIZE_SEALS.bits(), found: found.bits() });
    }
    // Only now: before the seals the size could still have changed.
    let stat = rustix::fs::fstat(&fd).map_err(|_| MemfdFault::NotMemfd)?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found != announced {
        return Err(MemfdFault::Size { announced, found });
    }
    Ok(())
}

/// Maps `len` bytes, shared, for reading and writing. [`touch`] them next.
pub(crate) fn map(fd: impl AsFd, len: u64) -> io::Result<MmapRaw> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let raw = MmapOptions::new().len(len).map_raw(&fd.as_fd())?;
    // Fewer page faults and fewer TLB misses where the system has huge pages for shared memory;
    // nothing is lost where it has not.
    let _ = raw.advise(Advice::HugePage);
    Ok(raw)
}

/// Has the kernel touch every page: a first touch costs 1.4 to 2.5 us per 4 KiB, several times the copy of the page.
pub(crate) fn touch(raw: &MmapRaw) -> io::Result<()> {
    match raw.advise(Advice::PopulateWrite) {
        // Linux before 5.14: pages come at their first touch.
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate, fstat};

    use super::*;

    #[test]
    fn a_kept_memory_has_no_holes_and_gets_none() {
        const LEN: u64 = 1 << 20;
        let fd = create("transload-test", LEN).unwrap();
        let _map = map(&fd, LEN).unwrap();
        assert_eq!(fstat(&fd).unwrap().st_blocks, 0, "all of it is a hole");
        // Once for each side.
        for _ in 0..2 {
            keep(&fd, LEN).unwrap();
        }
        assert_eq!(fstat(&fd).unwrap().st_blocks, LEN as i64 / 512);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&fd, hole, 0, LEN), Err(Errno::PERM));
        map(&fd, LEN).unwrap_err();
    }
}
