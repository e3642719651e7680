//! The staging ring: a few slots of memory that two processes share, one of them filling, the
//! other emptying them.
//!
//! One [`Producer`] (the source: it gathers into slots) and one [`Consumer`] (the destination: it
//! scatters out of them), each on a thread of its own that may block; [`drive`](super::drive) puts
//! such work besides async code. Slots arrive in the order in which they were published. A ring
//! outlives transfers: each slot says with a tag which one it belongs to, so that what is left of
//! one that was given up can be told apart and thrown away.
//!
//! **What is shared is not trusted.** The peer can write anywhere in the ring at any time. Each end
//! therefore keeps its own count, its own shape and its own addresses in private memory, and reads
//! from shared memory only: the peer's count, which must lie within one ring of its own; and the
//! header of a slot, each field of which is loaded once, into a private copy, and only then checked.
//! Whatever a peer writes there, the windows lie inside the ring, counts only go forwards, and
//! every wait ends by its deadline or by the hang-up of the `Doorbell`, from either side.
//! What a peer can spoil is the bytes of its own transfers, which have a checksum for that. Since
//! the bytes can change while they are read, windows are raw pointers and no slices.
//!
//! **Waiting**: an end that finds nothing to do looks again for some microseconds, then says in the ring that
//! it sleeps, looks once more, and sleeps on the socket; the other rings only if it reads that. A peer
//! that does not ring makes its own transfer slow, to the deadline at worst.
//!
//! **Devices** read and write slots themselves, and later than the call that asks them to: a slot, or a part of it, is *lent*
//! to them. Whatever becomes of its transfer or its peer, the memory stays mapped, and a slot is neither filled nor released
//! before it came back. Slots go in order all the same, so a source goes past one that a transfer which was given up has not
//! got back: it publishes that as a byte of no stream. A destination releases none behind such a slot. No slot ever waits for a
//! mark: parts are sent when they may be read, and asked for when they may be written.
//!
//! **Memory**: [`RingShape::bytes`] per ring, touched when it is mapped and charged to whichever of
//! the two processes comes first.

mod consumer;
mod control;
mod lent;
mod producer;
mod shape;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use consumer::Consumer;
pub(crate) use consumer::ReadWindow;
pub use producer::Producer;
pub(crate) use producer::WriteWindow;
pub use shape::RingShape;
pub(crate) use shape::ShapeError;

pub(super) use control::{Mapped, Ring};

use transload_memory::copy::{Crc32c, StreamError};

/// How long an end looks for news before it sleeps: as long as the other takes for a slot of short chunks, 256 KiB at
/// 11 GB/s. With less, an end that is a little faster than the other sleeps after each slot and is woken for each:
/// the canonical case then runs at 7.4 GB/s or at 11, as chance has it (with 5 us), and always at 11 with 25 us.
///
/// It costs where cores are scarce. With three other processes per core the canonical case ran at 0.58 of a `memcpy`
/// without looking, 0.51 with 5 us of it, 0.48 with 20 us, 0.45 with 50 us and 0.32 with 200 us.
const SPIN: Duration = Duration::from_micros(25);

/// Why a ring gave no window, or nothing could be done with one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum RingError {
    /// This end was hung up.
    #[error("the ring was hung up on this side")]
    HungUp,
    /// The peer hung up or died. A consumer gets what was published before that first.
    #[error("the peer has hung up")]
    PeerGone,
    /// The thread that works on this end has panicked. A fault of this process.
    #[error("the thread of the ring has panicked")]
    Panicked,
    /// The deadline passed.
    #[error("the peer has done nothing by the deadline")]
    TimedOut,
    /// The consumer has given no slot back for so long that the ring is given up; some may be lent to devices of this process.
    #[error(
        "of the ring's {slots} slots {unreleased} were not given back in time by the receiving agent, and {lent} are lent to GPUs of the sending process: one of the processes or its GPU stands still"
    )]
    NoneReleased { slots: u32, unreleased: u32, lent: u32 },
    /// All slots that the consumer has given back are still lent to devices of this process.
    #[error(
        "a GPU of the sending process is not done with any of the ring's {slots} slots in time: it stands still, held by a compilation or a debugger, for instance"
    )]
    AllLent { slots: u32 },
    /// The peer wrote something into the ring that cannot be; the ring is of no more use.
    #[error("the peer wrote nonsense into the ring: {field} is {found}")]
    Corrupt { field: &'static str, found: u64 },
    /// More bytes were to be published or staged than a slot holds, or none were to be published. A fault of this
    /// process.
    #[error("a slot holds 1 to {capacity} bytes, not {len}")]
    Length { len: usize, capacity: usize },
    /// Bytes could not be read from, or written to, their memory.
    #[error(transparent)]
    Memory(#[from] StreamError),
    /// `poll` failed.
    #[error("waiting for the peer failed")]
    Wait(#[source] std::io::Error),
}

/// Checks that `at + len` is within `capacity` bytes of a slot.
fn check(at: usize, len: usize, capacity: usize) -> Result<(), RingError> {
    let len = at.saturating_add(len);
    match len <= capacity {
        true => Ok(()),
        false => Err(RingError::Length { len, capacity }),
    }
}

/// How many bytes of a slot are summed at a time.
const SUM_STEP: usize = 16 << 10;

/// Adds bytes of a slot to a sum, by way of memory of this process: the peer may write to them meanwhile.
///
/// # Safety
/// `len` bytes can be read at `start`, and no other thread of this process writes to them.
unsafe fn add_to(sum: &mut Crc32c, start: *const u8, len: usize) {
    let mut step = [0; SUM_STEP];
    for at in (0..len).step_by(SUM_STEP) {
        let step = &mut step[..SUM_STEP.min(len - at)];
        // SAFETY: the caller's word; the step is private memory.
        unsafe { std::ptr::copy_nonoverlapping(start.add(at), step.as_mut_ptr(), step.len()) };
        sum.update(step);
    }
}

fn corrupt<T>(field: &'static str, found: u64) -> Result<T, RingError> {
    Err(RingError::Corrupt { field, found })
}
