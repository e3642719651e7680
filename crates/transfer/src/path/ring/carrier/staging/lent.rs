//! Slots whose bytes are lent to operations that go on after the window is gone.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Which slots of a ring are lent to somebody in this process, by their place in the ring.
///
/// A device reads or writes a slot when it gets to it, whatever has become of the transfer by then. So each end asks here before
/// a slot is used again.
pub(super) struct Lent(Box<[Arc<()>]>);

impl Lent {
    pub(super) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| Arc::new(())).collect())
    }

    /// What has a clone for as long as the slot, or a part of it, is out.
    pub(super) fn token(&self, slot: usize) -> &Arc<()> {
        &self.0[slot]
    }

    pub(super) fn is_out(&self, slot: usize) -> bool {
        let is_out = Arc::strong_count(&self.0[slot]) > 1;
        // With the decrement of the last who had it: what they did with the bytes comes before what is done next.
        fence(Ordering::Acquire);
        is_out
    }

    pub(super) fn are_all_out(&self) -> bool {
        (0..self.0.len()).all(|slot| self.is_out(slot))
    }

    /// How many are out.
    pub(super) fn count(&self) -> u32 {
        (0..self.0.len()).filter(|&slot| self.is_out(slot)).count() as u32
    }
}
