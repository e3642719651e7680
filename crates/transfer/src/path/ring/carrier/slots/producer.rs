//! The end that fills slots.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Ring, RingError, RingShape, add_to, check, corrupt};
use crate::data::{SharedMemory, Stretch};
use crate::path::ring::carrier::doorbell::Doorbell;
use transload_memory::copy::{Crc32c, Cursor};

/// The source's end of a ring.
///
/// Dropping it hangs up. The consumer still gets the published slots.
pub struct Producer {
    pub(super) ring: Ring,
    /// The number of slots published.
    head: u64,
    /// The number of slots known to be released.
    tail: u64,
}

/// The tag and the position of slots that belong to no stream. The position is not 0, since 0 begins a stream.
const NO_STREAM: (u64, u64) = (u64::MAX, 1);

impl Producer {
    pub(in crate::path::ring) fn new(ring: Ring) -> Self {
        Self { ring, head: 0, tail: 0 }
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

    /// Waits for a free slot; without a deadline for as long as the peer lives.
    pub fn reserve(&mut self, deadline: Option<Instant>) -> Result<WriteWindow<'_>, RingError> {
        // Slots that are still lent are skipped, as long as another one is free.
        while self.wait(0, deadline)? {
            self.put_header(NO_STREAM, 1)?;
        }
        let count = self.head;
        let producer = self;
        Ok(WriteWindow { producer, count })
    }

    /// Waits for a free slot after the next `ahead` ones, which are being filled. It is published after them.
    pub(in crate::path) fn reserve_ahead(
        &mut self,
        ahead: usize,
        deadline: Option<Instant>,
    ) -> Result<WriteWindow<'_>, RingError> {
        if ahead == 0 {
            return self.reserve(deadline);
        }
        match self.wait(ahead as u64, deadline)? {
            true => Err(RingError::TimedOut),
            false => Ok(WriteWindow { count: self.head + ahead as u64, producer: self }),
        }
    }

    /// Waits for the slot after the next `ahead` ones. Returns whether it is lent while others are not.
    fn wait(&mut self, ahead: u64, deadline: Option<Instant>) -> Result<bool, RingError> {
        let slots = u64::from(self.shape().slots());
        let (ring, head, known) = (&self.ring, self.head, self.tail);
        let (tail, is_lent) = ring.wait(ring.producer_sleeps(), deadline, || {
            let tail = ring.tail().load(Ordering::Acquire);
            // The count may only grow, and never beyond the published slots.
            if tail < known || tail > head {
                return corrupt("the count of released slots", tail);
            }
            let is_free = head + ahead - tail < slots;
            let is_lent = is_free && ring.is_lent(head + ahead);
            let waits = !is_free || is_lent && ring.lent.are_all_out();
            Ok((!waits).then_some((tail, is_lent)))
        })?;
        self.tail = tail;
        Ok(is_lent)
    }

    /// Returns the error for a ring without a free slot for too long: it tells which side has the slots.
    pub(in crate::path::ring) fn starved(&self) -> RingError {
        let (slots, lent) = (self.shape().slots(), self.ring.lent.count());
        // The peer's value is not trusted. It only goes into the message.
        let released = self.ring.tail().load(Ordering::Acquire);
        let unreleased = self.head.saturating_sub(released).min(u64::from(slots)) as u32;
        match lent == slots {
            true => RingError::AllLent { slots },
            false => RingError::NoneReleased { slots, unreleased, lent },
        }
    }

    /// Publishes the next slot.
    fn put_header(&mut self, (tag, offset): (u64, u64), len: u32) -> Result<(), RingError> {
        if self.ring.doorbell.is_hung_up() {
            return Err(RingError::HungUp);
        }
        let header = self.ring.header(self.head);
        header.tag.store(tag, Ordering::Relaxed);
        header.offset.store(offset, Ordering::Relaxed);
        header.len.store(len, Ordering::Relaxed);
        self.head += 1;
        // Release: the bytes and the header come before the count.
        self.ring.head().store(self.head, Ordering::Release);
        self.ring.wake(self.ring.consumer_sleeps())
    }
}

/// A free slot, to be filled and published. If this is dropped without publishing, the slot stays free.
///
/// The peer can read and write these bytes at any time. They are accessed through a raw pointer, so that no `&mut [u8]`
/// is made of them. No other thread of this process touches them while the window exists.
#[must_use = "a slot is delivered by `publish` only"]
pub struct WriteWindow<'a> {
    producer: &'a mut Producer,
    count: u64,
}

impl WriteWindow<'_> {
    /// Returns the start of the slot, aligned to 4 KiB. It is valid for reads and writes of
    /// [`capacity`](Self::capacity) bytes while the window exists.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.producer.ring.slot(self.count)
    }

    /// Returns the index of the slot in the ring.
    #[cfg(feature = "cuda")]
    pub(in crate::path) fn index(&self) -> usize {
        self.producer.ring.shape.index(self.count)
    }

    /// Returns the size of the slot in bytes.
    pub fn capacity(&self) -> usize {
        self.producer.shape().slot_bytes() as usize
    }

    /// Copies `bytes` to `at` in the slot. Returns `None` if they do not fit.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> Option<()> {
        check(at, bytes.len(), self.capacity()).ok()?;
        // SAFETY: `at + len` is within the slot, as just checked, and the slot is mapped while the
        // producer lives; `bytes` is private memory and does not overlap a shared mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_mut_ptr().add(at), bytes.len());
        }
        Some(())
    }

    /// Gathers the next `len` bytes of `cursor` to `at` in the slot, and adds them to `sum`.
    ///
    /// # Errors
    /// [`RingError::Length`], [`RingError::Memory`].
    pub fn gather(&mut self, at: usize, len: usize, cursor: &mut Cursor, sum: &mut Crc32c) -> Result<(), RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: `at + len` is within the slot, which is valid for writes of its capacity while this window exists,
        // and touched by no other thread of this process. A peer that writes to it spoils only its own transfer.
        unsafe { cursor.gather_raw(self.as_mut_ptr().add(at), len, Some(sum)) }?;
        Ok(())
    }

    /// Lends `len` bytes from `at` in the slot to an operation that fills them later. The slot can be published only
    /// after they came back.
    ///
    /// # Errors
    /// [`RingError::Length`].
    ///
    /// # Safety
    /// Until then this window, and later windows of this slot, touch other bytes only.
    pub(in crate::path::ring) unsafe fn lend(&self, at: usize, len: usize) -> Result<Stretch, RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: in this process slots are accessed through windows only. The caller vouches for this one, and
        // `reserve` returns no window of a lent slot.
        Ok(unsafe { self.producer.ring.lend(self.count, at, len) })
    }

    /// Adds `len` bytes from `at` in the slot to a sum.
    ///
    /// # Errors
    /// [`RingError::Length`].
    pub(in crate::path::ring) fn add_to(&mut self, sum: &mut Crc32c, at: usize, len: usize) -> Result<(), RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: the range is within the slot, as just checked. The slot is mapped while the producer lives, and
        // touched by no other thread of this process.
        unsafe { add_to(sum, self.as_mut_ptr().add(at), len) };
        Ok(())
    }

    /// Publishes the first `len` bytes of the slot to the consumer, as bytes `offset..offset + len` of the stream with
    /// the number `tag`.
    ///
    /// # Panics
    /// If earlier slots are being filled, or bytes of this one are lent.
    pub fn publish(self, tag: u64, offset: u64, len: usize) -> Result<(), RingError> {
        let capacity = self.capacity();
        let short = match u32::try_from(len) {
            Ok(short) if len > 0 && len <= capacity => short,
            _ => return Err(RingError::Length { len, capacity }),
        };
        let (producer, count) = (self.producer, self.count);
        assert!(count == producer.head && !producer.ring.is_lent(count));
        producer.put_header((tag, offset), short)
    }
}
