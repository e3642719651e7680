//! Slots whose bytes are lent to operations that continue after the window is gone.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Records which slots of a ring are lent in this process, by their index in the ring.
///
/// A device reads or writes a slot when it gets to it, even if the transfer has ended by then. So each end checks here
/// before it reuses a slot.
pub(super) struct Lent(Box<[Arc<()>]>);

impl Lent {
    pub(super) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| Arc::new(())).collect())
    }

    /// Returns the token of a slot. A clone of it exists for as long as any part of the slot is lent.
    pub(super) fn token(&self, slot: usize) -> &Arc<()> {
        &self.0[slot]
    }

    pub(super) fn is_out(&self, slot: usize) -> bool {
        let is_out = Arc::strong_count(&self.0[slot]) > 1;
        // Synchronises with the last borrower's decrement: its accesses happen before everything that follows here.
        fence(Ordering::Acquire);
        is_out
    }

    pub(super) fn are_all_out(&self) -> bool {
        (0..self.0.len()).all(|slot| self.is_out(slot))
    }

    pub(super) fn count(&self) -> u32 {
        (0..self.0.len()).filter(|&slot| self.is_out(slot)).count() as u32
    }
}
