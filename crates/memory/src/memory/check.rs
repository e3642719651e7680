//! The check that a program stays inside a memory, after which it runs without further checks.

use smallvec::SmallVec;
use thiserror::Error;
use transload_layout::Side;

use transload_plan::program::{ALLOCATION_BITS, Nest, Program, split_address};

/// The reason why a program cannot run on a memory. Places and nests are indices into [`Program::placed`] and
/// [`Program::nests`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum CheckError {
    /// A place reaches beyond the end of an allocation.
    #[error(
        "{side} of place {place} (nest {nest}) needs bytes {start} to {end} of allocation \
         {allocation}, which has {available}"
    )]
    OutOfBounds { side: Side, place: usize, nest: usize, allocation: usize, start: u64, end: u64, available: u64 },
    /// A place needs an allocation that does not exist.
    #[error(
        "{side} of place {place} (nest {nest}) is in allocation {allocation}, but there are only \
         {allocations}"
    )]
    NoAllocation { side: Side, place: usize, nest: usize, allocation: usize, allocations: usize },
    /// A place refers to a nest that does not exist.
    #[error("place {place} names nest {nest}, but there are only {nests}")]
    NoNest { place: usize, nest: usize, nests: usize },
    /// A nest has empty chunks, or a loop without steps.
    #[error("nest {nest} is empty: its run or the count of a loop is 0")]
    Empty { nest: usize },
    /// Sizes or addresses do not fit into 64 bits.
    #[error("sizes or addresses of nest {nest} do not fit into 64 bits")]
    Overflow { nest: usize },
    /// The program would write to a read-only memory.
    #[error("the destination is read-only")]
    ReadOnly,
}

/// The access of copies to the bytes of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Copies may only read the bytes. Scatters into such a memory are refused.
    Read,
    /// Read and write them.
    ReadWrite,
}

/// The lengths of a memory's allocations, for memory of any kind.
#[derive(Debug)]
#[doc(hidden)]
pub struct Extents {
    lens: Box<[u64]>,
    /// The shortest and the longest length; 0 if there are no allocations.
    shortest: u64,
    longest: u64,
}

impl Extents {
    pub fn new(lens: impl Iterator<Item = u64>) -> Self {
        let lens: Box<[_]> = lens.collect();
        Self {
            shortest: lens.iter().copied().min().unwrap_or(0),
            longest: lens.iter().copied().max().unwrap_or(0),
            lens,
        }
    }

    /// Checks a program, as [`Memory::check`](super::Memory::check) does.
    pub fn check(&self, program: &Program, side: Side, access: Access) -> Result<(), CheckError> {
        if side == Side::Destination && access == Access::Read {
            return Err(CheckError::ReadOnly);
        }
        let nests = program.nests.iter().enumerate();
        let extents = nests.map(|(nest, it)| Extent::of(nest, it, side, self.longest));
        let extents = extents.collect::<Result<Vec<_>, _>>()?;
        let mut total = 0u64;
        for (place, placed) in program.placed.iter().enumerate() {
            let nest = placed.nest as usize;
            let nests = extents.len();
            let extent = extents.get(nest);
            let extent = extent.ok_or(CheckError::NoNest { place, nest, nests })?;
            let sum = total.checked_add(extent.bytes);
            total = sum.ok_or(CheckError::Overflow { nest })?;
            let address = match side {
                Side::Source => placed.src,
                Side::Destination => placed.dst,
            };
            if !self.surely_has(extent, address) {
                let near = extent.near;
                let at = At { side, place, nest, near };
                self.check_far(&at, address, &extent.far)?;
            }
        }
        Ok(())
    }

    /// Returns whether a nest obviously fits, as it nearly always does: the offsets do not carry into the allocations'
    /// numbers, the last allocation exists, and even the shortest one is long enough.
    fn surely_has(&self, extent: &Extent, address: u64) -> bool {
        let (first, offset) = split_address(address);
        let end = offset.checked_add(extent.near);
        let last = (first as u64).checked_add(extent.allocations);
        extent.whole
            && end.is_some_and(|end| end <= self.shortest)
            && last.is_some_and(|last| last < self.lens.len() as u64)
    }

    /// Follows the loops that lead from one allocation into another, step by step. Each step that stays in bounds
    /// enters a later allocation, so each loop ends, or fails, within as many steps as there are allocations.
    fn check_far(&self, at: &At, address: u64, far: &[(u64, u64)]) -> Result<(), CheckError> {
        let Some((&(count, stride), inner)) = far.split_first() else {
            return self.check_near(at, address);
        };
        for step in 0..count {
            let far = step.checked_mul(stride);
            let address = far.and_then(|far| address.checked_add(far));
            let address = address.ok_or(CheckError::Overflow { nest: at.nest })?;
            self.check_far(at, address, inner)?;
        }
        Ok(())
    }

    fn check_near(&self, at: &At, address: u64) -> Result<(), CheckError> {
        let &At { side, place, nest, near } = at;
        let (allocation, start) = split_address(address);
        let Some(&available) = self.lens.get(allocation) else {
            let allocations = self.lens.len();
            return Err(CheckError::NoAllocation { side, place, nest, allocation, allocations });
        };
        let end = start.saturating_add(near);
        if end > available {
            return Err(CheckError::OutOfBounds { side, place, nest, allocation, start, end, available });
        }
        Ok(())
    }
}

struct At {
    side: Side,
    place: usize,
    nest: usize,
    /// The number of bytes that it needs from an address on.
    near: u64,
}

struct Extent {
    bytes: u64,
    /// Bytes from its first byte to the end of its last one, inside one allocation.
    near: u64,
    /// Loops (count, stride) that lead from one allocation into another: no allocation is long enough for two of their
    /// steps.
    far: SmallVec<[(u64, u64); 2]>,
    /// Whether their strides are whole allocations, so that offsets do not change.
    whole: bool,
    /// The distance from the first to the last allocation, if `whole`.
    allocations: u64,
}

impl Extent {
    fn of(index: usize, nest: &Nest, side: Side, longest: u64) -> Result<Self, CheckError> {
        let overflow = || CheckError::Overflow { nest: index };
        if nest.run == 0 || nest.loops.iter().any(|l| l.count == 0) {
            return Err(CheckError::Empty { nest: index });
        }
        let mut it = Self { bytes: nest.run, near: nest.run, far: SmallVec::new(), whole: true, allocations: 0 };
        for l in nest.loops.iter().filter(|l| l.count > 1) {
            it.bytes = it.bytes.checked_mul(l.count).ok_or_else(overflow)?;
            let stride = match side {
                Side::Source => l.src,
                Side::Destination => l.dst,
            };
            let reach = (l.count - 1).checked_mul(stride).ok_or_else(overflow)?;
            if stride < longest {
                it.near = it.near.checked_add(reach).ok_or_else(overflow)?;
            } else {
                it.far.push((l.count, stride));
                it.whole &= split_address(stride).1 == 0;
                it.allocations += reach >> ALLOCATION_BITS;
            }
        }
        Ok(it)
    }
}
