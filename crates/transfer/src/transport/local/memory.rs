//! Shared and borrowed memory as what copies run on.

use std::sync::Arc;

use super::shared::{BorrowedMemory, SharedMemory};
use crate::memory::{Access, Memory, MemoryError};

impl SharedMemory {
    /// The memory, its allocations in the order of the lengths given, for the copies of this process.
    ///
    /// # Errors
    /// [`MemoryError`], for more or longer allocations than a memory can have.
    pub fn memory(&self) -> Result<Memory, MemoryError> {
        let parts: Vec<_> = self.regions().map(|(at, len)| (at.as_ptr(), len)).collect();
        // SAFETY: the regions are mapped for reading and writing as long as a handle lives, and the
        // keeper is one; nobody has references to them, since handles give out pointers only.
        unsafe { Memory::from_raw_parts(&parts, Access::ReadWrite, Some(Arc::new(self.clone()))) }
    }
}

impl BorrowedMemory {
    /// The memory, its allocations in the order of the lengths given, to copy from.
    ///
    /// # Errors
    /// [`MemoryError`], for more or longer allocations than a memory can have.
    pub fn memory(&self) -> Result<Memory, MemoryError> {
        self.clone().memory_dropped_by(drop)
    }

    /// The same, whose handle goes to `discard` with the last clone of it: unmapping takes its time, which
    /// not everybody has who drops a memory.
    ///
    /// # Errors
    /// As of [`memory`](Self::memory).
    pub(crate) fn memory_dropped_by(
        self,
        discard: impl FnOnce(Self) + Send + Sync + 'static,
    ) -> Result<Memory, MemoryError> {
        let parts: Vec<_> = self
            .regions()
            .map(|(at, len)| (at.cast_mut(), len))
            .collect();
        let keeper = Keeper(Some((self, discard)));
        // SAFETY: the regions are mapped for reading as long as a handle lives, and the keeper has one
        // until it is dropped; their size is sealed, so that reading cannot fault; nobody has references
        // to them, since handles give out pointers only.
        unsafe { Memory::from_raw_parts(&parts, Access::Read, Some(Arc::new(keeper))) }
    }
}

/// A handle, and who gets it in the end.
struct Keeper<F: FnOnce(BorrowedMemory)>(Option<(BorrowedMemory, F)>);

impl<F: FnOnce(BorrowedMemory)> Drop for Keeper<F> {
    fn drop(&mut self) {
        if let Some((memory, discard)) = self.0.take() {
            discard(memory);
        }
    }
}
