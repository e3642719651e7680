//! Memory with a file descriptor whose size can no longer change.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// The seals without which a peer can turn a mapping of its memory into a SIGBUS by shrinking the file. [`keep`] does
/// the rest.
pub(super) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The seals without which pages can be removed from the memory: no process can punch a hole if writing is possible
/// only through existing mappings (Linux 5.1).
const CONTENT_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// `TMPFS_MAGIC` of `linux/magic.h`: the file system of an ordinary memfd.
///
/// A memfd of huge pages (`HUGETLBFS_MAGIC`) has the same seals, but its owner can still remove pages by punching a
/// hole. Touching these again is a SIGBUS if the pool is empty.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The reason why a descriptor is not an acceptable sealed memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemfdFault {
    /// It is not a memfd of ordinary pages, or cannot be examined.
    #[error("the descriptor is not a memfd of ordinary pages")]
    NotMemfd,
    /// A seal is missing.
    #[error("the memfd lacks seals: {demanded:#x} demanded, {found:#x} found")]
    Seals { demanded: u32, found: u32 },
    /// Its size differs from the announced one.
    #[error("the memfd has {found} bytes, announced were {announced}")]
    Size { announced: u64, found: u64 },
}

/// Creates a memfd whose size is fixed at `len` bytes.
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

/// Allocates every page of a memory of `len` bytes, for good. Both sides call it when both have mapped the memory,
/// which can then be written only through these mappings. If the system has no memory left (strict overcommit), this
/// fails; otherwise the first access would be a SIGBUS.
pub(crate) fn keep(fd: impl AsFd, len: u64) -> io::Result<()> {
    // The other side may have sealed it first.
    let sealed = rustix::fs::fcntl_add_seals(&fd, CONTENT_SEALS);
    let found = rustix::fs::fcntl_get_seals(&fd)?;
    if !found.contains(SealFlags::FUTURE_WRITE) {
        sealed?;
    }
    let whole = || rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len);
    Ok(rustix::io::retry_on_intr(whole)?)
}

/// Checks a descriptor from a peer: it must be an ordinary memfd, sealed in size, of exactly `announced` bytes. Such a
/// memory can be mapped, and after [`keep`] no access to it faults.
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
    // Checked after the seals, before which the size could still change.
    let stat = rustix::fs::fstat(&fd).map_err(|_| MemfdFault::NotMemfd)?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found != announced {
        return Err(MemfdFault::Size { announced, found });
    }
    Ok(())
}

/// Maps `len` bytes, shared, for reading and writing. Call [`touch`] next.
pub(crate) fn map(fd: impl AsFd, len: u64) -> io::Result<MmapRaw> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let raw = MmapOptions::new().len(len).map_raw(&fd.as_fd())?;
    // Reduces page faults and TLB misses if the system has huge pages for shared memory; otherwise it has no effect.
    let _ = raw.advise(Advice::HugePage);
    Ok(raw)
}

/// Makes the kernel touch every page: a first touch takes 1.4 to 2.5 us per 4 KiB, several times as long as copying the
/// page.
pub(crate) fn touch(raw: &MmapRaw) -> io::Result<()> {
    match raw.advise(Advice::PopulateWrite) {
        // Linux before 5.14 allocates pages at their first touch only.
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
