//! The end that fills slots.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Ring, RingError, RingShape, check, corrupt};
use crate::copy::{Crc32c, Cursor};
use crate::path::ring::carrier::doorbell::Doorbell;

/// The source's end of a ring.
///
/// Dropping it hangs up; the consumer still gets what was published.
pub struct Producer {
    pub(super) ring: Ring,
    /// Slots published.
    head: u64,
    /// Slots known to be released.
    tail: u64,
}

impl Producer {
    pub(in crate::path::ring) fn new(ring: Ring) -> Self {
        Self {
            ring,
            head: 0,
            tail: 0,
        }
    }

    /// The shape of the ring.
    pub fn shape(&self) -> RingShape {
        self.ring.shape
    }

    /// What hangs this end up from any thread.
    pub fn doorbell(&self) -> Doorbell {
        self.ring.doorbell.clone()
    }

    /// Waits for a free slot; without a deadline for as long as the peer lives.
    pub fn reserve(&mut self, deadline: Option<Instant>) -> Result<WriteWindow<'_>, RingError> {
        let slots = u64::from(self.shape().slots());
        let (ring, head, known) = (&self.ring, self.head, self.tail);
        let tail = ring.wait(ring.producer_sleeps(), deadline, || {
            let tail = ring.tail().load(Ordering::Acquire);
            // Only forwards, and never past what was published.
            if tail < known || tail > head {
                return corrupt("the count of released slots", tail);
            }
            Ok((head - tail < slots).then_some(tail))
        })?;
        self.tail = tail;
        Ok(WriteWindow { producer: self })
    }
}

/// A free slot, to be filled and published. Dropped unpublished, the slot stays free.
///
/// The peer can read and write these bytes at any time: this is a raw pointer so that nobody makes
/// a `&mut [u8]` of it. No other thread of this process touches them while the window is out.
#[must_use = "a slot is delivered by `publish` only"]
pub struct WriteWindow<'a> {
    producer: &'a mut Producer,
}

impl WriteWindow<'_> {
    /// Start of the slot, aligned to 4 KiB. Valid for [`capacity`](Self::capacity) bytes of reads
    /// and writes while the window lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.producer.ring.slot(self.producer.head)
    }

    /// Bytes of the slot.
    pub fn capacity(&self) -> usize {
        self.producer.shape().slot_bytes() as usize
    }

    /// Copies `bytes` to `at` in the slot; `None` if they do not fit.
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
    pub fn gather(
        &mut self,
        at: usize,
        len: usize,
        cursor: &mut Cursor,
        sum: &mut Crc32c,
    ) -> Result<(), RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: `at + len` is within the slot, which is valid for writes of its capacity while this
        // window lives, and touched by no other thread of this process; what the peer does to it shows
        // in the peer's own transfer only.
        unsafe { cursor.gather_raw(self.as_mut_ptr().add(at), len, Some(sum)) }?;
        Ok(())
    }

    /// Hands the first `len` bytes of the slot to the consumer, as bytes `offset..offset + len` of
    /// the stream that both sides call `tag`.
    pub fn publish(self, tag: u64, offset: u64, len: usize) -> Result<(), RingError> {
        let capacity = self.capacity();
        let short = match u32::try_from(len) {
            Ok(short) if len > 0 && len <= capacity => short,
            _ => return Err(RingError::Length { len, capacity }),
        };
        let producer = &mut *self.producer;
        if producer.ring.doorbell.is_hung_up() {
            return Err(RingError::HungUp);
        }
        let header = producer.ring.header(producer.head);
        header.tag.store(tag, Ordering::Relaxed);
        header.offset.store(offset, Ordering::Relaxed);
        header.len.store(short, Ordering::Relaxed);
        producer.head += 1;
        // Release: the bytes and the header come before the count.
        producer.ring.head().store(producer.head, Ordering::Release);
        producer.ring.wake(producer.ring.consumer_sleeps())
    }
}
