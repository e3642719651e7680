//! Memory registered as shared: the owner writes it, a trusted peer maps it read-only.
//!
//! **How a peer is kept from writing.** The memory is a memfd that its owner maps first and then
//! seals with `F_SEAL_FUTURE_WRITE` (Linux 5.1): from then on no descriptor of it, however it was
//! got, can be written or mapped writable, and a read-only mapping cannot be made writable later
//! (the kernel drops `VM_MAYWRITE` from it), while the owner's mapping, being older, stays as it
//! is. A descriptor opened read-only would not do: a process of the same user opens
//! `/proc/self/fd/N` of it again for writing. The same seal forbids punching holes;
//! `F_SEAL_SHRINK` and `F_SEAL_GROW` fix the size, which is what keeps the peer's reads from faulting;
//! and `F_SEAL_SEAL` keeps the set as it is.
//!
//! What no seal can do is to keep out a process that may trace the owner (`ptrace`); same user and
//! no Yama means that trust anyway.
//!
//! **What a peer learns**: everything in this memory, not just what its tickets cover, until the
//! owner exits. Lend to roles that may see it all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapRaw;
use rustix::fs::SealFlags;

use super::memfd::{self, Access, MemfdFault};

/// Allocations in one memfd, zeroed, writable by this process only.
///
/// Clones are handles to the same memory, which lives as long as one of them does.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    owned: Arc<Owned>,
}

impl SharedMemory {
    /// Makes one allocation per length in bytes, touched and sealed.
    ///
    /// Touching takes 0.4 to 0.6 s per GiB where huge pages are not to be had.
    pub fn create(lens: &[u64]) -> Result<Self, SharedError> {
        let regions = Regions::new(lens)?;
        let fd = memfd::create("transload-shared", regions.total).map_err(SharedError::Create)?;
        let map =
            memfd::map(&fd, regions.mapped_len()?, Access::ReadWrite).map_err(SharedError::Map)?;
        regions.touch(&map).map_err(SharedError::Map)?;
        // After the mapping, which keeps its right to write.
        memfd::seal(&fd, memfd::SIZE_SEALS | SealFlags::FUTURE_WRITE).map_err(SharedError::Seal)?;
        Ok(Self {
            owned: Arc::new(Owned {
                fd,
                mapped: Mapped { map, regions },
            }),
        })
    }

    /// Start and length of each allocation, in the order of the lengths given.
    ///
    /// Valid for reads and writes of this process while a handle lives; a peer that it was lent to
    /// may read at any time, so what it must not see half written needs a lease.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (NonNull<u8>, usize)> + '_ {
        self.owned.mapped.regions()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.owned.fd.as_fd()
    }

    pub(super) fn lens(&self) -> &[u64] {
        &self.owned.mapped.regions.lens
    }
}

/// A peer's [`SharedMemory`], mapped read-only: a write to it is a SIGSEGV.
///
/// The owner can change the bytes at any time; what its lease keeps still is what may be used, once
/// it has said after the copy that the lease was still alive.
#[derive(Clone, Debug)]
pub struct BorrowedMemory {
    mapped: Arc<Mapped>,
}

impl BorrowedMemory {
    /// Checks what a peer lends as allocations of these lengths.
    pub(super) fn check(fd: impl AsFd, regions: &Regions) -> Result<(), MemfdFault> {
        memfd::check(fd, regions.total, memfd::SIZE_SEALS)
    }

    /// Maps what has been checked. No page is touched: how many there are is for the peer to say, and a
    /// hole that is read becomes a page that this process is charged for.
    pub(super) fn map(fd: impl AsFd, regions: Regions) -> Result<Self, SharedError> {
        let map =
            memfd::map(&fd, regions.mapped_len()?, Access::ReadOnly).map_err(SharedError::Map)?;
        Ok(Self {
            mapped: Arc::new(Mapped { map, regions }),
        })
    }

    /// Start and length of each allocation. Valid for reads only, while a handle lives.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (*const u8, usize)> + '_ {
        self.mapped
            .regions()
            .map(|(at, len)| (at.as_ptr().cast_const(), len))
    }
}

/// Why memory could not be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// No allocation, or one of no bytes.
    #[error("shared memory has allocations of at least one byte each")]
    Empty,
    /// Together they exceed what this machine can address.
    #[error("the allocations together are too large to address")]
    TooLarge,
    /// `memfd_create` or `ftruncate` failed.
    #[error("creating shared memory failed")]
    Create(#[source] io::Error),
    /// Mapping or touching failed.
    #[error("mapping shared memory failed")]
    Map(#[source] io::Error),
    /// The kernel does not know `F_SEAL_FUTURE_WRITE` (Linux before 5.1).
    #[error("sealing shared memory failed")]
    Seal(#[source] io::Error),
    /// What the peer handed over is not what it has to be.
    #[error(transparent)]
    Memfd(#[from] MemfdFault),
}

#[derive(Debug)]
struct Owned {
    fd: OwnedFd,
    mapped: Mapped,
}

#[derive(Debug)]
struct Mapped {
    map: MmapRaw,
    regions: Regions,
}

impl Mapped {
    fn regions(&self) -> impl ExactSizeIterator<Item = (NonNull<u8>, usize)> + '_ {
        self.regions.lens.iter().zip(&self.regions.offsets).map(
            // Both fit: `offset + len <= total`, and `total` bytes are mapped.
            |(&len, &offset)| {
                // SAFETY: `Regions` places every region inside `total` bytes, and so many are
                // mapped; a mapping never starts at null.
                let at =
                    unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(offset as usize)) };
                (at, len as usize)
            },
        )
    }
}

/// What lies where in the memfd: a function of the lengths, so that both sides compute it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Regions {
    lens: Vec<u64>,
    offsets: Vec<u64>,
    pub(super) total: u64,
}

impl Regions {
    pub(super) fn new(lens: &[u64]) -> Result<Self, SharedError> {
        let mut total = 0u64;
        let mut offsets = Vec::with_capacity(lens.len());
        for &len in lens {
            if len == 0 {
                return Err(SharedError::Empty);
            }
            // Aligned so that huge pages can be had. The gap before is smaller than the allocation.
            let align = if len >= HUGE_PAGE { HUGE_PAGE } else { SMALL };
            let offset = total
                .checked_next_multiple_of(align)
                .ok_or(SharedError::TooLarge)?;
            offsets.push(offset);
            total = offset.checked_add(len).ok_or(SharedError::TooLarge)?;
        }
        if total == 0 {
            return Err(SharedError::Empty);
        }
        // A file size is a signed number.
        if total > i64::MAX as u64 {
            return Err(SharedError::TooLarge);
        }
        Ok(Self {
            lens: lens.to_vec(),
            offsets,
            total,
        })
    }

    /// Bytes of the allocations, without the gaps between them.
    pub(super) fn bytes(&self) -> u64 {
        // At most `total`.
        self.lens.iter().sum()
    }

    fn touch(&self, map: &MmapRaw) -> io::Result<()> {
        for (&offset, &len) in self.offsets.iter().zip(&self.lens) {
            // Both fit, as in `mapped_len`.
            memfd::touch(map, offset as usize, len as usize)?;
        }
        Ok(())
    }

    fn mapped_len(&self) -> Result<usize, SharedError> {
        usize::try_from(self.total).map_err(|_| SharedError::TooLarge)
    }
}

const HUGE_PAGE: u64 = 2 << 20;
const SMALL: u64 = 4 << 10;
