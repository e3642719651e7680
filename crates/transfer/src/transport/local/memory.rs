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
        let parts: Vec<_> = self
            .regions()
            .map(|(at, len)| (at.cast_mut(), len))
            .collect();
        // SAFETY: the regions are mapped for reading as long as a handle lives, and the keeper is one;
        // their size is sealed, so that reading cannot fault; nobody has references to them, since
        // handles give out pointers only.
        unsafe { Memory::from_raw_parts(&parts, Access::Read, Some(Arc::new(self.clone()))) }
    }
}
