//! The end that fills slots.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{End, Ring, RingError, RingShape};
use crate::path::ring::carrier::fence::Fence;

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
        self.ring.shape()
    }

    /// Waits for a free slot; without a deadline for as long as the peer lives.
    pub fn reserve(&mut self, deadline: Option<Instant>) -> Result<WriteWindow<'_>, RingError> {
        let slots = u64::from(self.shape().slots());
        self.wait_for_tail(deadline, |head, tail| head - tail < slots)?;
        Ok(WriteWindow { producer: self })
    }

    /// Waits until the consumer has released every slot that was published.
    pub fn drained(&mut self, deadline: Option<Instant>) -> Result<(), RingError> {
        self.wait_for_tail(deadline, |head, tail| head == tail)
    }

    fn wait_for_tail(
        &mut self,
        deadline: Option<Instant>,
        enough: impl Fn(u64, u64) -> bool,
    ) -> Result<(), RingError> {
        let (ring, head, known) = (&self.ring, self.head, self.tail);
        let tail = ring.wait(ring.producer_sleeps(), deadline, || {
            let tail = ring.tail().load(Ordering::Acquire);
            // Only forwards, and never past what was published.
            if tail < known || tail > head {
                return Err(RingError::Corrupt {
                    field: "the count of released slots",
                    found: tail,
                });
            }
            Ok(enough(head, tail).then_some(tail))
        })?;
        self.tail = tail;
        Ok(())
    }
}

impl End for Producer {
    fn fence(&self) -> Fence {
        self.ring.fence.clone()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.ring.fence.raise();
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
        let end = at.checked_add(bytes.len())?;
        if end > self.capacity() {
            return None;
        }
        // SAFETY: `at + len` is within the slot, as just checked, and the slot is mapped while the
        // producer lives; `bytes` is private memory and does not overlap a shared mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_mut_ptr().add(at), bytes.len());
        }
        Some(())
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
        if producer.ring.fence.is_raised() {
            return Err(RingError::Fenced);
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
