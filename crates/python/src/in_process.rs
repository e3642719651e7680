//! Values that can only be used in the process that made them.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::process;

use pyo3::prelude::*;

use crate::errors::StoreError;

/// A value with connections, locks or threads, which a forked child does not share. The child can neither use nor drop
/// it: dropping could wait for a thread that does not exist there, or end the parent's work.
pub(crate) struct InProcess<T> {
    made: u32,
    value: ManuallyDrop<T>,
}

impl<T> InProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { made: process::id(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value in the process that made it, and an error in any other.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.made == process::id() {
            return Ok(self.value.deref());
        }
        Err(StoreError::new_err("this was made before the process forked: open the store again in each process"))
    }
}

impl<T> Drop for InProcess<T> {
    fn drop(&mut self) {
        if self.made == process::id() {
            // SAFETY: nobody can use it any more, and it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
