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
/// Dropping it hangs up; the consumer still gets what was published.
pub struct Producer {
    pub(super) ring: Ring,
    /// Slots published.
    head: u64,
    /// Slots known to be released.
    tail: u64,
}

/// The tag of slots that belong to no stream; where in that, too, since 0 begins one.
const NO_STREAM: (u64, u64) = (u64::MAX, 1);

impl Producer {
    pub(in crate::path::ring) fn new(ring: Ring) -> Self {
        Self { ring, head: 0, tail: 0 }
    }

    /// The shape of the ring.
    pub fn shape(&self) -> RingShape {
        self.ring.shape
    }

    /// What hangs this end up from any thread.
    pub fn doorbell(&self) -> Doorbell {
        self.ring.doorbell.clone()
    }

    /// The memory of the ring.
    pub(in crate::path::ring) fn memory(&self) -> &Arc<SharedMemory> {
        self.ring.memory()
    }

    /// Waits for a free slot; without a deadline for as long as the peer lives.
    pub fn reserve(&mut self, deadline: Option<Instant>) -> Result<WriteWindow<'_>, RingError> {
        // Those that cannot be filled are passed over, as long as there is one that can.
        while self.wait(0, deadline)? {
            self.put_header(NO_STREAM, 1)?;
        }
        let count = self.head;
        let producer = self;
        Ok(WriteWindow { producer, count })
    }

    /// Waits for a free slot behind the next `ahead` ones, which are being filled. It is published after them.
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

    /// Waits for the slot behind the next `ahead` ones, and says whether it is lent while others are not.
    fn wait(&mut self, ahead: u64, deadline: Option<Instant>) -> Result<bool, RingError> {
        let slots = u64::from(self.shape().slots());
        let (ring, head, known) = (&self.ring, self.head, self.tail);
        let (tail, is_lent) = ring.wait(ring.producer_sleeps(), deadline, || {
            let tail = ring.tail().load(Ordering::Acquire);
            // Only forwards, and never past what was published.
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

    /// Why there has been no slot to reserve for so long that the ring is given up: which side has them.
    pub(in crate::path::ring) fn starved(&self) -> RingError {
        let (slots, lent) = (self.shape().slots(), self.ring.lent.count());
        // The peer's word, so not to be trusted: it is only told.
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

/// A free slot, to be filled and published. Dropped unpublished, the slot stays free.
///
/// The peer can read and write these bytes at any time: this is a raw pointer so that nobody makes
/// a `&mut [u8]` of it. No other thread of this process touches them while the window is out.
#[must_use = "a slot is delivered by `publish` only"]
pub struct WriteWindow<'a> {
    producer: &'a mut Producer,
    count: u64,
}

impl WriteWindow<'_> {
    /// Start of the slot, aligned to 4 KiB. Valid for [`capacity`](Self::capacity) bytes of reads
    /// and writes while the window lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.producer.ring.slot(self.count)
    }

    /// Which of the ring's slots it is.
    #[cfg(feature = "cuda")]
    pub(in crate::path) fn index(&self) -> usize {
        self.producer.ring.shape.index(self.count)
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
    pub fn gather(&mut self, at: usize, len: usize, cursor: &mut Cursor, sum: &mut Crc32c) -> Result<(), RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: `at + len` is within the slot, which is valid for writes of its capacity while this
        // window lives, and touched by no other thread of this process; what the peer does to it shows
        // in the peer's own transfer only.
        unsafe { cursor.gather_raw(self.as_mut_ptr().add(at), len, Some(sum)) }?;
        Ok(())
    }

    /// Lends `len` bytes from `at` in the slot to whoever fills them later. The slot can be published only when they came
    /// back.
    ///
    /// # Errors
    /// [`RingError::Length`].
    ///
    /// # Safety
    /// Until then the window, and those that follow it for this slot, touch other bytes only.
    pub(in crate::path::ring) unsafe fn lend(&self, at: usize, len: usize) -> Result<Stretch, RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: in this process slots are touched by windows only: by this one as the caller says, and by none that
        // `reserve` gives.
        Ok(unsafe { self.producer.ring.lend(self.count, at, len) })
    }

    /// Adds `len` bytes from `at` in the slot to a sum.
    ///
    /// # Errors
    /// [`RingError::Length`].
    pub(in crate::path::ring) fn add_to(&mut self, sum: &mut Crc32c, at: usize, len: usize) -> Result<(), RingError> {
        check(at, len, self.capacity())?;
        // SAFETY: within the slot, as just checked, which is mapped while the producer lives and touched by no other thread of
        // this process.
        unsafe { add_to(sum, self.as_mut_ptr().add(at), len) };
        Ok(())
    }

    /// Hands the first `len` bytes of the slot to the consumer, as bytes `offset..offset + len` of
    /// the stream that both sides call `tag`.
    ///
    /// # Panics
    /// If slots before it are being filled, or bytes of it are lent.
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
