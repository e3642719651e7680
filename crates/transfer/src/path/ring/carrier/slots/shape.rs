//! The size and the layout of a ring.

/// The number of slots of a ring, and their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingShape {
    slots: u32,
    slot_bytes: u32,
}

impl RingShape {
    /// The default: 8 slots of 256 KiB, which fit into a second-level cache of 2 MiB.
    ///
    /// Measured with the canonical case (163,840 chunks of 512 B, 83.9 MB) relative to one `memcpy` of its bytes, two
    /// cores, medians: 8 slots of 128 KiB 0.93, of 256 KiB 1.01, of 512 KiB 0.98; 256 KiB in 4 slots 0.83, in 16 slots
    /// 1.00.
    pub const DEFAULT: Self = Self { slots: 8, slot_bytes: 256 << 10 };

    /// Between two devices: 16 slots of 1 MiB. A slot becomes free again about 85 us after it was requested, in which
    /// PCIe 5 carries 4.7 MB. That much must be in flight, and as much again is being summed and emptied.
    pub const BETWEEN_DEVICES: Self = Self { slots: 16, slot_bytes: 1 << 20 };

    /// Bytes of a ring besides its slots: counts and headers.
    pub const CONTROL_BYTES: u64 = 8192;

    /// Makes a shape of `slots` (2 to 32) slots of `slot_bytes` (a multiple of 4 KiB, at most 4 MiB).
    pub const fn new(slots: u32, slot_bytes: u32) -> Result<Self, ShapeError> {
        if slots < 2 || slots > MAX_SLOTS {
            return Err(ShapeError::Slots { slots });
        }
        if slot_bytes == 0 || slot_bytes > MAX_SLOT_BYTES || !slot_bytes.is_multiple_of(SLOT_UNIT) {
            return Err(ShapeError::SlotBytes { slot_bytes });
        }
        Ok(Self { slots, slot_bytes })
    }

    /// Returns the number of slots.
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Returns the size of a slot in bytes.
    pub const fn slot_bytes(self) -> u32 {
        self.slot_bytes
    }

    /// Returns the bytes of the whole ring: the slots, and 8 KiB for counts and headers.
    pub const fn bytes(self) -> u64 {
        // At most 32 * 4 MiB + 8 KiB.
        Self::CONTROL_BYTES + self.slots as u64 * self.slot_bytes as u64
    }

    /// Returns the offset of the slot that is filled as number `count` since the beginning.
    pub(super) const fn slot_offset(self, count: u64) -> usize {
        Self::CONTROL_BYTES as usize + self.index(count) * self.slot_bytes as usize
    }

    pub(super) const fn header_offset(self, count: u64) -> usize {
        HEADERS_OFFSET + self.index(count) * LINE
    }

    /// Returns the index of that slot.
    pub(super) const fn index(self, count: u64) -> usize {
        (count % self.slots as u64) as usize
    }
}

/// A shape is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// There are too few or too many slots.
    #[error("a ring has 2 to {MAX_SLOTS} slots, not {slots}")]
    Slots { slots: u32 },
    /// The slots have a bad size.
    #[error("a slot has a multiple of {SLOT_UNIT} bytes up to {MAX_SLOT_BYTES}, not {slot_bytes}")]
    SlotBytes { slot_bytes: u32 },
}

/// The distance of words that one side writes and the other reads: one cache line, or 128 bytes because processors
/// prefetch lines in pairs.
pub(super) const LINE: usize = 128;
/// Offset of the number of slots published so far, which the producer writes.
pub(super) const HEAD_OFFSET: usize = 0;
/// Offset of the number of slots released so far, which the consumer writes.
pub(super) const TAIL_OFFSET: usize = LINE;
/// Offset of a flag that is 1 while the producer sleeps, or is about to.
pub(super) const PRODUCER_SLEEPS_OFFSET: usize = 2 * LINE;
/// Offset of a flag that is 1 while the consumer sleeps, or is about to.
pub(super) const CONSUMER_SLEEPS_OFFSET: usize = 3 * LINE;
/// Offset of the slots' headers, one per line.
const HEADERS_OFFSET: usize = 4 * LINE;
/// Offsets in a header: of the tag (u64), the stream offset (u64), the length (u32).
pub(super) const TAG_OFFSET: usize = 0;
pub(super) const STREAM_OFFSET: usize = 8;
pub(super) const LEN_OFFSET: usize = 16;

const MAX_SLOTS: u32 = 32;
const MAX_SLOT_BYTES: u32 = 4 << 20;
const SLOT_UNIT: u32 = 4096;

const _: () = assert!(HEADERS_OFFSET + MAX_SLOTS as usize * LINE <= RingShape::CONTROL_BYTES as usize);
