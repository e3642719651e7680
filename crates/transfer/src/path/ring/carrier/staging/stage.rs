//! Gathering into slots and scattering out of them.

use thiserror::Error;

use super::{ReadWindow, WriteWindow};
use crate::copy::{Crc32c, Cursor, StreamError};

/// Why bytes could not be staged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StageError {
    /// They do not lie in the slot.
    #[error("{len} bytes at {at} of a slot of {bytes}")]
    Outside {
        /// Where in the slot.
        at: usize,
        /// How many.
        len: usize,
        /// Bytes of the slot.
        bytes: usize,
    },
    /// They could not be read from, or written to, their memory.
    #[error(transparent)]
    Memory(#[from] StreamError),
}

impl WriteWindow<'_> {
    /// Gathers the next `len` bytes of `cursor` to `at` in the slot, and adds them to `sum`.
    ///
    /// # Errors
    /// [`StageError`].
    pub fn gather(
        &mut self,
        at: usize,
        len: usize,
        cursor: &mut Cursor,
        sum: &mut Crc32c,
    ) -> Result<(), StageError> {
        check(at, len, self.capacity())?;
        // SAFETY: `at + len` is within the slot, which is valid for writes of its capacity while this
        // window lives, and touched by no other thread of this process; what the peer does to it shows
        // in the peer's own transfer only.
        unsafe { cursor.gather_raw(self.as_mut_ptr().add(at), len, Some(sum)) }?;
        Ok(())
    }
}

impl ReadWindow<'_> {
    /// Scatters `len` bytes from `at` in the slot as the next of `cursor`, and adds them to `sum`.
    ///
    /// # Errors
    /// [`StageError`].
    pub fn scatter(
        &self,
        at: usize,
        len: usize,
        cursor: &mut Cursor,
        sum: &mut Crc32c,
    ) -> Result<(), StageError> {
        check(at, len, self.len())?;
        // SAFETY: `at + len` is within what the slot holds, which is valid for reads while this window
        // lives; what the peer does to it meanwhile shows in its own transfer only.
        unsafe { cursor.scatter_raw(self.as_ptr().add(at), len, Some(sum)) }?;
        Ok(())
    }
}

fn check(at: usize, len: usize, bytes: usize) -> Result<(), StageError> {
    match at.checked_add(len) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(StageError::Outside { at, len, bytes }),
    }
}
