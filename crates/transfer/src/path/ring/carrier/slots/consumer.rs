//! The end that empties slots.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Ring, RingError, RingShape, add_to, check, corrupt};
use crate::data::{SharedMemory, Stretch};
use crate::path::ring::carrier::doorbell::Doorbell;
use transload_memory::copy::{Crc32c, Cursor};

/// The destination's end of a ring. Dropping it hangs up.
pub struct Consumer {
    pub(super) ring: Ring,
    /// The number of slots released.
    tail: u64,
    /// The number of slots taken. The last ones may be lent.
    taken: u64,
    /// The number of slots known to be published.
    head: u64,
}

impl Consumer {
    pub(in crate::path::ring) fn new(ring: Ring) -> Self {
        Self { ring, tail: 0, taken: 0, head: 0 }
    }

    /// Returns the shape of the ring.
    pub fn shape(&self) -> RingShape {
        self.ring.shape
    }

    /// Returns the doorbell, with which any thread can hang up this end.
    pub fn doorbell(&self) -> Doorbell {
        self.ring.doorbell.clone()
    }

    pub(in crate::path::ring) fn memory(&self) -> &Arc<SharedMemory> {
        self.ring.memory()
    }

    /// Waits for the next slot; without a deadline for as long as the peer lives. Lent slots that came back are
    /// released first, so while slots are lent this must be called again soon.
    pub fn receive(&mut self, deadline: Option<Instant>) -> Result<ReadWindow<'_>, RingError> {
        self.release();
        let slots = u64::from(self.shape().slots());
        let (ring, tail, taken, known) = (&self.ring, self.tail, self.taken, self.head);
        let head = ring.wait(ring.consumer_sleeps(), deadline, || {
            let head = ring.head().load(Ordering::Acquire);
            // The count may only grow, and by at most one ring. Both numbers count slots seen by this process, so the
            // sum cannot overflow before 2^64 slots.
            if head < known || head > tail + slots {
                return corrupt("the count of published slots", head);
            }
            Ok((head > taken).then_some(head))
        })?;
        self.head = head;

        let header = self.ring.header(taken);
        // Each field is loaded once into private memory, so that the checked value is the used one.
        let tag = header.tag.load(Ordering::Relaxed);
        let offset = header.offset.load(Ordering::Relaxed);
        let len = header.len.load(Ordering::Relaxed);
        if len == 0 || len > self.shape().slot_bytes() {
            return corrupt("the length of a slot", len.into());
        }
        if offset.checked_add(len.into()).is_none() {
            return corrupt("the stream offset of a slot", offset);
        }
        Ok(ReadWindow { consumer: self, tag, offset, len: len as usize })
    }

    /// Returns whether taken slots are not released: they were lent, and [`receive`](Self::receive) has not seen them
    /// come back.
    pub(in crate::path::ring) fn has_lent(&self) -> bool {
        self.tail < self.taken
    }

    /// Releases slots to the producer, up to the first one that is lent.
    fn release(&mut self) {
        let known = self.tail;
        while self.tail < self.taken && !self.ring.is_lent(self.tail) {
            self.tail += 1;
        }
        if self.tail > known {
            // Release: every read of the bytes comes before the count.
            self.ring.tail().store(self.tail, Ordering::Release);
            // The next wait notices a peer that is gone.
            let _ = self.ring.wake(self.ring.producer_sleeps());
        }
    }
}

/// A filled slot, to be emptied. Dropping this releases it to the producer, as soon as none of it is lent.
///
/// The peer can write these bytes at any time. They are accessed through a raw pointer, so that no `&[u8]` is made of
/// them, and reading them twice may give different values.
#[must_use = "what is not read is lost"]
pub struct ReadWindow<'a> {
    consumer: &'a mut Consumer,
    tag: u64,
    offset: u64,
    len: usize,
}

impl ReadWindow<'_> {
    /// Returns the stream that the bytes belong to, as the peer states.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the position of the bytes in that stream, as the peer states; `offset + len` does not overflow.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes: from 1 to the size of a slot.
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte, aligned to 4 KiB. It is valid for reads of [`len`](Self::len) bytes while
    /// the window exists.
    pub fn as_ptr(&self) -> *const u8 {
        self.consumer.ring.slot(self.consumer.taken)
    }

    /// Returns the index of the slot in the ring.
    #[cfg(feature = "cuda")]
    pub(in crate::path) fn index(&self) -> usize {
        self.consumer.ring.shape.index(self.consumer.taken)
    }

    /// Copies bytes from `at` in the slot. Returns `None` if there are fewer.
    pub fn get(&self, at: usize, into: &mut [u8]) -> Option<()> {
        check(at, into.len(), self.len).ok()?;
        // SAFETY: `at + len` is within the slot, as just checked, and the slot is mapped while the
        // consumer lives; `into` is private memory and does not overlap a shared mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr().add(at), into.as_mut_ptr(), into.len());
        }
        Some(())
    }

    /// Lends `len` bytes from `at` in the slot to an operation that reads them later. The slot is released when they
    /// come back.
    ///
    /// # Errors
    /// [`RingError::Length`].
    ///
    /// # Safety
    /// The bytes are only read.
    pub(in crate::path) unsafe fn lend(&self, at: usize, len: usize) -> Result<Stretch, RingError> {
        check(at, len, self.len)?;
        let consumer = &*self.consumer;
        // SAFETY: nothing in this process writes to the peer's slots; the caller vouches for the operation.
        Ok(unsafe { consumer.ring.lend(consumer.taken, at, len) })
    }

    /// Adds `len` bytes from `at` in the slot to a sum. If the peer writes to them, the sum and another read of them
    /// may differ.
    ///
    /// # Errors
    /// [`RingError::Length`].
    pub(in crate::path::ring) fn add_to(&self, sum: &mut Crc32c, at: usize, len: usize) -> Result<(), RingError> {
        check(at, len, self.len)?;
        // SAFETY: `at + len` is within what the slot holds, which is valid for reads while this window lives.
        unsafe { add_to(sum, self.as_ptr().add(at), len) };
        Ok(())
    }

    /// Scatters `len` bytes from `at` in the slot as the next of `cursor`, and adds them to `sum`.
    ///
    /// # Errors
    /// [`RingError::Length`], [`RingError::Memory`].
    pub fn scatter(&self, at: usize, len: usize, cursor: &mut Cursor, sum: &mut Crc32c) -> Result<(), RingError> {
        check(at, len, self.len)?;
        // SAFETY: `at + len` is within what the slot holds, which is valid for reads while this window
        // lives; what the peer does to it meanwhile shows in its own transfer only.
        unsafe { cursor.scatter_raw(self.as_ptr().add(at), len, Some(sum)) }?;
        Ok(())
    }
}

impl Drop for ReadWindow<'_> {
    fn drop(&mut self) {
        self.consumer.taken += 1;
        self.consumer.release();
    }
}
