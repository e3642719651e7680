//! The allocations of one rank and one group, and access to their bytes.

use std::alloc::{self, Layout};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use thiserror::Error;
use transload_layout::{MAX_ALLOCATION_BYTES, Side};
use transload_plan::program::{ALLOCATION_BITS, Program, split_address};

#[cfg(feature = "ndarray")]
pub mod array;
mod check;
#[cfg(test)]
mod tests;

pub use check::{Access, CheckError, Extents};

/// The most allocations of a memory: the numbers that fit above the offset in an address.
pub const MAX_ALLOCATIONS: usize = 1 << (64 - ALLOCATION_BITS);

/// The alignment of allocations made by [`Memory::allocate`]: the page size that every machine can map.
const PAGE: usize = 4096;

/// Allocations of at least this size are aligned to huge pages, and request them.
///
/// With them, copies of 512 B chunks at random blocks are 15 to 20 % faster, and of 8 KiB chunks 10 %. The first touch
/// of 2 MiB costs one fault instead of 512.
const HUGE_PAGE: usize = 2 << 20;

/// The allocations of one rank and one group. Clones are cheap and refer to the same memory. Any thread can use it.
///
/// ```
/// use transload_memory::Memory;
///
/// // Two layers, each in its own allocation.
/// let memory = Memory::allocate(&[8192, 8192])?;
/// memory.write(1 << 44 | 4096, b"in layer 1")?;
/// let mut bytes = [0; 10];
/// memory.read(1 << 44 | 4096, &mut bytes)?;
/// assert_eq!(&bytes, b"in layer 1");
/// assert!(memory.read(8190, &mut bytes).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    allocations: Box<[Allocation]>,
    extents: Extents,
    access: Access,
    /// Keeps the bytes mapped. Declared last, so that it is dropped last, with the last clone.
    _keeper: Option<Keeper>,
}

type Keeper = Arc<dyn Any + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocation {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an allocation is a pair of numbers. Its bytes are only ever copied, which any thread may do while they exist,
// and `Shared` keeps them.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

/// The reason why a memory could not be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum MemoryError {
    /// An address cannot represent that many allocations.
    #[error("{count} allocations, but a memory has {MAX_ALLOCATIONS} at most")]
    TooMany { count: usize },
    /// An allocation is longer than [`MAX_ALLOCATION_BYTES`], or exceeds the address space.
    #[error("allocation {allocation} of {len} bytes does not fit: {MAX_ALLOCATION_BYTES} bytes at most")]
    TooLong { allocation: usize, len: usize },
    /// An allocation that is not empty starts at address 0.
    #[error("allocation {allocation} of {len} bytes starts at a null pointer")]
    Null { allocation: usize, len: usize },
    /// The system has no memory left.
    #[error("no memory left for allocation {allocation} of {len} bytes")]
    Exhausted { allocation: usize, len: usize },
}

/// The reason why bytes of a memory could not be accessed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum AccessError {
    /// The address refers to bytes beyond the end of an allocation, or to an allocation that does not exist and so has
    /// 0 bytes.
    #[error("{len} bytes at offset {offset} of allocation {allocation}, which has {available} bytes")]
    OutOfBounds { allocation: usize, offset: u64, len: u64, available: u64 },
    /// The memory was registered for reading only.
    #[error("the memory is read-only")]
    ReadOnly,
}

impl Memory {
    /// Allocates zeroed memory of the given lengths in bytes, and touches every page of it.
    ///
    /// Allocations start at a page; those of 2 MiB and more start at a multiple of 2 MiB, and request huge pages if the
    /// system supports them. Touching pages beforehand matters: the first touch of a page takes 5 to 10 times as long
    /// as the copy into it.
    ///
    /// # Errors
    /// [`MemoryError::TooMany`], [`TooLong`](MemoryError::TooLong) or
    /// [`Exhausted`](MemoryError::Exhausted).
    pub fn allocate(lens: &[usize]) -> Result<Self, MemoryError> {
        few_enough(lens.len())?;
        let buffers = lens.iter().enumerate();
        let buffers = buffers.map(|(number, &len)| Buffer::new(number, len));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let allocations = buffers.iter().map(|buffer| buffer.allocation).collect();
        let keeper = Some(Arc::new(buffers) as Keeper);
        Ok(Self::new(allocations, Access::ReadWrite, keeper))
    }

    /// Wraps memory that something else owns: the first byte and the length in bytes of each allocation.
    ///
    /// The `keeper`, if any, is dropped after the last clone of this memory and the last copy that uses it. It should
    /// own the bytes, like a mapping or a tensor.
    ///
    /// # Safety
    /// Until the keeper is dropped, or without a keeper until the process ends,
    /// - every byte of every allocation can be read, and written if `access` says so, from any thread, and
    /// - no Rust reference to any of these bytes exists while a copy may access them: none at all while one may write,
    ///   no `&mut` while one may read. Foreign code (an engine, another process, a device) may read and write them at
    ///   any time; see [other writers](crate#other-writers).
    ///
    /// # Errors
    /// [`MemoryError::TooMany`], [`TooLong`](MemoryError::TooLong) or [`Null`](MemoryError::Null).
    pub unsafe fn from_raw_parts(
        parts: &[(*mut u8, usize)],
        access: Access,
        keeper: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, MemoryError> {
        few_enough(parts.len())?;
        let allocations = parts
            .iter()
            .enumerate()
            .map(|(allocation, &(start, len))| {
                if len as u64 > MAX_ALLOCATION_BYTES || start.addr().checked_add(len).is_none() {
                    return Err(MemoryError::TooLong { allocation, len });
                }
                let start = match NonNull::new(start) {
                    Some(start) => start,
                    None if len == 0 => NonNull::dangling(),
                    None => return Err(MemoryError::Null { allocation, len }),
                };
                Ok(Allocation { start, len })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self::new(allocations, access, keeper))
    }

    fn new(allocations: Box<[Allocation]>, access: Access, keeper: Option<Keeper>) -> Self {
        Self {
            shared: Arc::new(Shared {
                extents: Extents::new(allocations.iter().map(|a| a.len as u64)),
                allocations,
                access,
                _keeper: keeper,
            }),
        }
    }

    /// Returns the number of allocations.
    pub fn allocations(&self) -> usize {
        self.shared.allocations.len()
    }

    /// Returns the first byte and the length in bytes of one allocation.
    pub fn allocation(&self, number: usize) -> Option<(NonNull<u8>, usize)> {
        let allocation = self.shared.allocations.get(number)?;
        Some((allocation.start, allocation.len))
    }

    /// Returns the number of bytes in all allocations together.
    pub fn bytes(&self) -> u64 {
        self.shared.allocations.iter().map(|a| a.len as u64).sum()
    }

    /// Returns what copies may do with the bytes.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// Copies the bytes at `address` into `out`.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`].
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let src = self.locate(address, out.len())?;
        // SAFETY: `locate` proved the source in bounds, and the makers of this memory vouch that it can be read there;
        // `out` is a unique reference, so by their contract it is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `address`.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`], [`AccessError::ReadOnly`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), AccessError> {
        if self.shared.access == Access::Read {
            return Err(AccessError::ReadOnly);
        }
        let dst = self.locate(address, bytes.len())?;
        // SAFETY: as in `read`, and writing is allowed; `bytes` is a reference, so by the contract of `from_raw_parts`
        // it is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Returns the first of `len` bytes at `address`, if all of them are inside one allocation.
    fn locate(&self, address: u64, len: usize) -> Result<NonNull<u8>, AccessError> {
        let (number, offset) = split_address(address);
        let found = self.shared.allocations.get(number);
        let available = found.map_or(0, |a| a.len as u64);
        match found {
            Some(found) if offset <= available && len as u64 <= available - offset => {
                // SAFETY: the offset is inside the allocation or one past its end.
                Ok(unsafe { found.start.add(offset as usize) })
            }
            _ => Err(AccessError::OutOfBounds { allocation: number, offset, len: len as u64, available }),
        }
    }

    /// Converts an address that a check has found in bounds to a pointer.
    ///
    /// # Safety
    /// The address's allocation exists, and its offset is not beyond the end.
    #[inline(always)]
    pub(crate) unsafe fn pointer(&self, address: u64) -> *mut u8 {
        let (number, offset) = split_address(address);
        debug_assert!(self.allocation(number).is_some_and(|(_, len)| offset <= len as u64));
        // SAFETY: the caller vouches for both.
        unsafe {
            let found = self.shared.allocations.get_unchecked(number);
            found.start.as_ptr().add(offset as usize)
        }
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let mut spans: Vec<_> = [(self, false), (other, true)]
            .into_iter()
            .flat_map(|(memory, which)| {
                let parts = memory.shared.allocations.iter().filter(|a| a.len > 0);
                parts.map(move |a| {
                    let start = a.start.as_ptr().addr();
                    (start, start + a.len, which)
                })
            })
            .collect();
        spans.sort_unstable();
        // Allocations of one memory may overlap too, so the furthest end of each side is kept.
        let mut ends = [0; 2];
        spans.iter().any(|&(start, end, which)| {
            let own = &mut ends[usize::from(which)];
            *own = end.max(*own);
            start < ends[usize::from(!which)]
        })
    }

    /// Checks that every byte that `program` touches on `side` is in this memory, so that it can run without further
    /// checks.
    ///
    /// It takes O(places + nests) if all allocations have one length (or strides between them are whole allocations),
    /// O(places * allocations) at worst, and never O(chunks). A stride is a non-negative number: one that is meant to
    /// go backwards is out of bounds.
    ///
    /// # Errors
    /// The first [`CheckError`] that is found.
    pub fn check(&self, program: &Program, side: Side) -> Result<(), CheckError> {
        self.shared.extents.check(program, side, self.access())
    }
}

fn few_enough(count: usize) -> Result<(), MemoryError> {
    match count {
        ..=MAX_ALLOCATIONS => Ok(()),
        _ => Err(MemoryError::TooMany { count }),
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("allocations", &self.allocations())
            .field("bytes", &self.bytes())
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

struct Buffer {
    allocation: Allocation,
    layout: Layout,
}

impl Buffer {
    fn new(allocation: usize, len: usize) -> Result<Self, MemoryError> {
        let too_long = MemoryError::TooLong { allocation, len };
        if len as u64 > MAX_ALLOCATION_BYTES {
            return Err(too_long);
        }
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        // An allocation of size 0 is not possible.
        let layout = Layout::from_size_align(len.max(1), align).map_err(|_| too_long)?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(MemoryError::Exhausted { allocation, len })?;
        advise_huge_pages(start, len);
        // SAFETY: these bytes were just allocated. This also touches each page.
        unsafe { start.write_bytes(0, len) };
        let allocation = Allocation { start, len };
        Ok(Self { allocation, layout })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and freed only here.
        unsafe { alloc::dealloc(self.allocation.start.as_ptr(), self.layout) };
    }
}

/// Requests huge pages, if the buffer has room for any. A refusal affects only the speed.
fn advise_huge_pages(start: NonNull<u8>, len: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if len >= HUGE_PAGE {
        use rustix::mm::{Advice::LinuxHugepage, madvise};
        let whole = len / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the range was just allocated and is aligned to its pages, and this advice changes no bytes.
        let _ = unsafe { madvise(start.as_ptr().cast(), whole, LinuxHugepage) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, len);
}
