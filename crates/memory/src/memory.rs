//! The allocations of one rank and one group, and how their bytes are reached.

use std::alloc::{self, Layout};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use thiserror::Error;
use transload_layout::MAX_ALLOCATION_BYTES;
use transload_plan::program::{ALLOCATION_BITS, split_address};

#[cfg(feature = "ndarray")]
pub mod array;
mod check;
#[cfg(test)]
mod tests;

pub use check::{CheckError, Extents};

/// The most allocations one memory can have: what fits above the offset in an address.
pub const MAX_ALLOCATIONS: usize = 1 << (64 - ALLOCATION_BITS);

/// The alignment of what [`Memory::allocate`] makes: the page size that every machine can map.
const PAGE: usize = 4096;

/// Allocations from this size on are aligned to, and advised to be made of, huge pages.
///
/// Copies of 512 B chunks at random blocks run 15 to 20 % faster on them, of 8 KiB chunks 10 %, and
/// the first touch of 2 MiB costs one fault and not 512.
const HUGE_PAGE: usize = 2 << 20;

/// The allocations of one rank and one group, cheap to clone, to be used from any thread.
///
/// ```
/// use transload_memory::Memory;
///
/// // Two layers in an allocation of their own each.
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
    /// Dropped last, with the last clone: what keeps the bytes where they are.
    _keeper: Option<Keeper>,
}

type Keeper = Arc<dyn Any + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocation {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an allocation is a pair of numbers here; the bytes behind it are only ever copied, which
// any thread may do while they are there, and `Shared` keeps them there.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

/// What copies may do with the bytes of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only read them: a scatter into such a memory is refused.
    Read,
    /// Read and write them.
    ReadWrite,
}

/// Why a memory could not be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum MemoryError {
    /// An address has no room for the number of so many allocations.
    #[error("{count} allocations, but a memory has {MAX_ALLOCATIONS} at most")]
    TooMany { count: usize },
    /// An allocation is longer than [`MAX_ALLOCATION_BYTES`], or runs past the end of all addresses.
    #[error("allocation {allocation} of {len} bytes does not fit: {MAX_ALLOCATION_BYTES} bytes at most")]
    TooLong { allocation: usize, len: usize },
    /// An allocation that is not empty starts at address 0.
    #[error("allocation {allocation} of {len} bytes starts at a null pointer")]
    Null { allocation: usize, len: usize },
    /// The system has no memory left for it.
    #[error("no memory left for allocation {allocation} of {len} bytes")]
    Exhausted { allocation: usize, len: usize },
}

/// Why bytes of a memory could not be reached.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum AccessError {
    /// The address names an allocation that is not there (it has 0 bytes then), or bytes beyond its end.
    #[error("{len} bytes at offset {offset} of allocation {allocation}, which has {available} bytes")]
    OutOfBounds { allocation: usize, offset: u64, len: u64, available: u64 },
    /// The memory was registered for reading only.
    #[error("the memory is read-only")]
    ReadOnly,
}

impl Memory {
    /// Allocates zeroed memory of the given lengths in bytes, every page of it touched.
    ///
    /// Allocations start at a page; those of 2 MiB and more start at 2 MiB and ask for huge pages
    /// where the system knows them. Touching pages beforehand matters: the first touch of a page
    /// costs 5 to 10 times the copy into it.
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

    /// Memory that somebody else owns: the first byte and the length in bytes of each allocation.
    ///
    /// The `keeper`, if any, is dropped with the last clone of this memory and the last copy that
    /// uses it: hand over what owns the bytes, a mapping or a tensor.
    ///
    /// # Safety
    /// Until the keeper is dropped (without one: until the process ends),
    /// - every byte of every allocation can be read, and written if `access` says so, from any
    ///   thread, and
    /// - no Rust reference to any of these bytes is alive while a copy may touch them: none at all
    ///   while one may write, no `&mut` while one may read. Foreign code (an engine, another
    ///   process, a device) may read and write them at any time; see [other writers](crate#other-writers).
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

    /// How many allocations there are.
    pub fn allocations(&self) -> usize {
        self.shared.allocations.len()
    }

    /// The first byte and the length in bytes of one allocation.
    pub fn allocation(&self, number: usize) -> Option<(NonNull<u8>, usize)> {
        let allocation = self.shared.allocations.get(number)?;
        Some((allocation.start, allocation.len))
    }

    /// How many bytes there are in all allocations together.
    pub fn bytes(&self) -> u64 {
        self.shared.allocations.iter().map(|a| a.len as u64).sum()
    }

    /// What copies may do with the bytes.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// Copies the bytes at `address` into `out`.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`].
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let src = self.locate(address, out.len())?;
        // SAFETY: `locate` proved the source in bounds, the makers of this memory that it can be
        // read there; `out` is a unique reference, so by their contract it lies elsewhere.
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
        // SAFETY: as in `read`, and writing is allowed; `bytes` is a reference, so by the contract
        // of `from_raw_parts` it lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The first of `len` bytes at `address`, all of them inside one allocation.
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

    /// Where an address points that a check has found in bounds.
    ///
    /// # Safety
    /// The address's allocation is there, and its offset not beyond its end.
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

    /// Whether any byte belongs to both memories.
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
        // Allocations of one memory may share bytes too, so each side keeps its furthest end.
        let mut ends = [0; 2];
        spans.iter().any(|&(start, end, which)| {
            let own = &mut ends[usize::from(which)];
            *own = end.max(*own);
            start < ends[usize::from(!which)]
        })
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

/// One buffer of an owned memory.
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
        // Nothing of size 0 can be allocated.
        let layout = Layout::from_size_align(len.max(1), align).map_err(|_| too_long)?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(MemoryError::Exhausted { allocation, len })?;
        advise_huge_pages(start, len);
        // SAFETY: these bytes were just allocated. This is also what touches each page.
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

/// Asks for huge pages, if there is room for any; that they are refused changes nothing but the speed.
fn advise_huge_pages(start: NonNull<u8>, len: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if len >= HUGE_PAGE {
        use rustix::mm::{Advice::LinuxHugepage, madvise};
        let whole = len / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the range was just allocated, is aligned to its pages, and this advice changes
        // no bytes.
        let _ = unsafe { madvise(start.as_ptr().cast(), whole, LinuxHugepage) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, len);
}
