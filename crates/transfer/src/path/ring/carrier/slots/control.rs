//! The shared control words of a ring, and waiting for the peer to change them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use memmap2::MmapRaw;

use super::lent::Lent;
use super::shape::{self, RingShape};
use super::{RingError, SPIN};
use crate::data::{SharedMemory, Stretch};
use crate::path::ring::carrier::doorbell::{Doorbell, Woken};
use crate::path::ring::carrier::memfd;

/// The memory of a ring that this side has mapped.
pub(in crate::path::ring) struct Mapped {
    memory: OwnedFd,
    map: MmapRaw,
    shape: RingShape,
}

impl Mapped {
    /// Makes the memory of a ring, sealed in size.
    pub(in crate::path::ring) fn create(shape: RingShape) -> io::Result<Self> {
        Self::new(memfd::create("transload-ring", shape.bytes())?, shape)
    }

    /// Maps memory that was made for a ring of `shape`, or [checked](memfd::check).
    pub(in crate::path::ring) fn new(memory: OwnedFd, shape: RingShape) -> io::Result<Self> {
        let map = memfd::map(&memory, shape.bytes())?;
        Ok(Self { memory, map, shape })
    }

    pub(in crate::path::ring) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Makes the ring, when both sides have mapped its memory. From then on every page exists for good.
    pub(in crate::path::ring) fn keep(self, socket: OwnedFd) -> io::Result<Ring> {
        let Self { memory, map, shape } = self;
        memfd::keep(memory, shape.bytes())?;
        memfd::touch(&map)?;
        Ok(Ring { shape, map: SharedMemory::new(map), lent: Lent::new(shape.slots()), doorbell: Doorbell::new(socket) })
    }
}

/// A mapped ring and its doorbell, for either end. Dropping it hangs up.
pub(in crate::path::ring) struct Ring {
    pub(super) shape: RingShape,
    map: Arc<SharedMemory>,
    pub(super) lent: Lent,
    pub(super) doorbell: Doorbell,
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.doorbell.hang_up();
    }
}

impl Ring {
    pub(super) fn memory(&self) -> &Arc<SharedMemory> {
        &self.map
    }

    /// Lends bytes of a slot that passed [`check`](super::check).
    ///
    /// # Safety
    /// As for [`Stretch::new`]. The bytes are lent for as long as the slot [is](Self::is_lent).
    pub(super) unsafe fn lend(&self, count: u64, at: usize, len: usize) -> Stretch {
        let start = self.shape.slot_offset(count) + at;
        let token = self.lent.token(self.shape.index(count));
        // SAFETY: the caller vouches for the bytes.
        unsafe { Stretch::new(&self.map, start..start + len, token) }
    }

    /// Returns whether bytes of that slot are lent.
    pub(super) fn is_lent(&self, count: u64) -> bool {
        self.lent.is_out(self.shape.index(count))
    }

    /// Returns the address of the slot that is filled as number `count`.
    pub(super) fn slot(&self, count: u64) -> *mut u8 {
        // SAFETY: `slot_offset` takes `count` modulo the number of slots, so that the slot lies
        // within the `shape.bytes()` bytes mapped.
        unsafe { self.map.as_mut_ptr().add(self.shape.slot_offset(count)) }
    }

    /// Returns the header of that slot.
    pub(super) fn header(&self, count: u64) -> Header<'_> {
        let at = self.shape.header_offset(count);
        Header {
            tag: self.u64_at(at + shape::TAG_OFFSET),
            offset: self.u64_at(at + shape::STREAM_OFFSET),
            len: self.u32_at(at + shape::LEN_OFFSET),
        }
    }

    /// The number of slots published.
    pub(super) fn head(&self) -> &AtomicU64 {
        self.u64_at(shape::HEAD_OFFSET)
    }

    /// The number of slots released.
    pub(super) fn tail(&self) -> &AtomicU64 {
        self.u64_at(shape::TAIL_OFFSET)
    }

    pub(super) fn producer_sleeps(&self) -> &AtomicU32 {
        self.u32_at(shape::PRODUCER_SLEEPS_OFFSET)
    }

    pub(super) fn consumer_sleeps(&self) -> &AtomicU32 {
        self.u32_at(shape::CONSUMER_SLEEPS_OFFSET)
    }

    /// Wakes the peer if its flag `its_sleep` says that it sleeps. Call it after the store that the peer waits for.
    ///
    /// Both sides store first and then look, with a full fence in between, so at least one of them sees the other.
    pub(super) fn wake(&self, its_sleep: &AtomicU32) -> Result<(), RingError> {
        atomic::fence(Ordering::SeqCst);
        if its_sleep.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        its_sleep.store(0, Ordering::SeqCst);
        match self.doorbell.ring() {
            true => Ok(()),
            // Either side has ended the connection.
            false if self.doorbell.is_hung_up() => Err(RingError::HungUp),
            false => Err(RingError::PeerGone),
        }
    }

    /// Waits until `ready` returns a value.
    pub(super) fn wait<T>(
        &self,
        my_sleep: &AtomicU32,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Result<Option<T>, RingError>,
    ) -> Result<T, RingError> {
        if let Some(found) = self.look(&mut ready)? {
            return Ok(found);
        }
        let spun = Instant::now() + SPIN;
        while Instant::now() < spun {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            if let Some(found) = self.look(&mut ready)? {
                return Ok(found);
            }
        }
        let outcome = self.sleep(my_sleep, deadline, &mut ready);
        my_sleep.store(0, Ordering::Relaxed);
        outcome
    }

    fn sleep<T>(
        &self,
        my_sleep: &AtomicU32,
        deadline: Option<Instant>,
        ready: &mut impl FnMut() -> Result<Option<T>, RingError>,
    ) -> Result<T, RingError> {
        loop {
            my_sleep.store(1, Ordering::SeqCst);
            atomic::fence(Ordering::SeqCst);
            if let Some(found) = self.look(ready)? {
                return Ok(found);
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Err(RingError::TimedOut);
            }
            match self.doorbell.wait(deadline).map_err(RingError::Wait)? {
                Woken::LookAgain => {}
                // Slots that the peer published before it hung up still count.
                Woken::HungUp => return self.look(ready)?.ok_or(RingError::PeerGone),
            }
        }
    }

    fn look<T>(&self, ready: &mut impl FnMut() -> Result<Option<T>, RingError>) -> Result<Option<T>, RingError> {
        match self.doorbell.is_hung_up() {
            true => Err(RingError::HungUp),
            false => ready(),
        }
    }

    fn u64_at(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.map.len());
        // SAFETY: every caller's `at` comes from the constants of `shape` or from `header_offset`, so it is a multiple
        // of 8 inside the mapping, which lives as long as `self` and starts on a page. This process accesses these
        // bytes with atomics only. The peer may write anything, and any value is a valid u64.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    fn u32_at(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(4) && at + 4 <= self.map.len());
        // SAFETY: as in `u64_at`, with 4 for 8.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }
}

/// The shared words of one slot.
pub(super) struct Header<'a> {
    pub(super) tag: &'a AtomicU64,
    pub(super) offset: &'a AtomicU64,
    pub(super) len: &'a AtomicU32,
}
