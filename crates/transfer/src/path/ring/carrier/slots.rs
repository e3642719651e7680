//! The staging ring: a few slots of memory that two processes share. One fills them, the other empties them.
//!
//! A ring has one [`Producer`] (the source, which gathers into slots) and one [`Consumer`] (the destination, which
//! scatters from them), each on a thread of its own that may block; [`drive`](super::drive) runs such threads from
//! async code. Slots arrive in the order in which they were published. A ring outlives transfers: each slot states with
//! a tag which one it belongs to, so that the rest of a transfer that was given up can be recognised and dropped.
//!
//! **Shared memory is not trusted.** The peer can write anywhere in the ring at any time. Each end therefore keeps its
//! own count, its own shape and its own addresses in private memory. It reads only two things from shared memory: the
//! peer's count, which must lie within one ring of its own, and the header of a slot, of which each field is loaded
//! once into a private copy and then checked. Whatever a peer writes, windows lie inside the ring, counts only grow,
//! and every wait ends by its deadline or when either side hangs up the `Doorbell`. A peer can only spoil the bytes of
//! its own transfers, which have a checksum. Since the bytes can change while they are read, windows are raw pointers
//! and not slices.
//!
//! **Waiting.** An end with nothing to do polls for some microseconds. Then it sets a flag in the ring that it sleeps,
//! looks once more, and sleeps on the socket. The other end rings only if it sees the flag. A peer that does not ring
//! slows its own transfers down, at worst until the deadline.
//!
//! **Devices** read and write slots themselves, and later than the call that requests it: a slot, or a part of it, is
//! *lent* to them. Whatever happens to its transfer or its peer, the memory stays mapped, and a lent slot is neither
//! filled nor released before it comes back. Slots still go in order. So a source skips a slot that a stopped transfer
//! has not got back, by publishing it as a byte of no stream. A destination releases no slot behind such a one. No slot
//! ever waits for a mark: parts are sent when they may be read, and requested when they may be written.
//!
//! **Memory**: [`RingShape::bytes`] per ring, touched when it is mapped, and charged to the process that is first.

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
#[cfg(feature = "cuda")]
pub(crate) use producer::WriteWindow;
pub use shape::RingShape;
pub(crate) use shape::ShapeError;

pub(super) use control::{Mapped, Ring};

use transload_memory::copy::{Crc32c, StreamError};

/// How long an end polls before it sleeps: as long as the other end takes for a slot of short chunks, 256 KiB at 11
/// GB/s. With less, an end that is slightly faster than the other sleeps after each slot and must be woken for each:
/// the canonical case then runs at 7.4 or 11 GB/s at random (with 5 us), and always at 11 with 25 us.
///
/// Polling costs time where cores are scarce. With three other processes per core the canonical case ran at 0.58 of a
/// `memcpy` without polling, 0.51 with 5 us of it, 0.48 with 20 us, 0.45 with 50 us and 0.32 with 200 us.
const SPIN: Duration = Duration::from_micros(25);

/// The reason why a ring operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum RingError {
    /// This end was hung up.
    #[error("the ring was hung up on this side")]
    HungUp,
    /// The peer hung up or died. A consumer first gets the slots that were published before.
    #[error("the peer has hung up")]
    PeerGone,
    /// The thread that works on this end has panicked, a fault of this process.
    #[error("the thread of the ring has panicked")]
    Panicked,
    /// The deadline passed.
    #[error("the peer has done nothing by the deadline")]
    TimedOut,
    /// The consumer released no slot within the time limit, so the ring is closed. Some slots may be lent to devices of this
    /// process.
    #[error(
        "of the ring's {slots} slots {unreleased} were not given back in time by the receiving agent, and {lent} are lent to GPUs of the sending process: one of the processes or its GPU stands still"
    )]
    NoneReleased { slots: u32, unreleased: u32, lent: u32 },
    /// All slots that the consumer has released are still lent to devices of this process.
    #[error(
        "a GPU of the sending process is not done with any of the ring's {slots} slots in time: it stands still, held by a compilation or a debugger, for instance"
    )]
    AllLent { slots: u32 },
    /// The peer wrote an invalid value into the ring, which cannot be used any more.
    #[error("the peer wrote nonsense into the ring: {field} is {found}")]
    Corrupt { field: &'static str, found: u64 },
    /// More bytes were to be published or staged than a slot holds, or none were to be published. This process has a bug.
    #[error("a slot holds 1 to {capacity} bytes, not {len}")]
    Length { len: usize, capacity: usize },
    /// The memory of the bytes could not be read or written.
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

/// The number of bytes that are summed at a time.
const SUM_STEP: usize = 16 << 10;

/// Adds bytes of a slot to a sum, by copying them to private memory first: the peer may write to them meanwhile.
///
/// # Safety
/// `len` bytes can be read at `start`, and no other thread of this process writes to them.
unsafe fn add_to(sum: &mut Crc32c, start: *const u8, len: usize) {
    let mut step = [0; SUM_STEP];
    for at in (0..len).step_by(SUM_STEP) {
        let step = &mut step[..SUM_STEP.min(len - at)];
        // SAFETY: the caller vouches for the bytes; the step is private memory.
        unsafe { std::ptr::copy_nonoverlapping(start.add(at), step.as_mut_ptr(), step.len()) };
        sum.update(step);
    }
}

fn corrupt<T>(field: &'static str, found: u64) -> Result<T, RingError> {
    Err(RingError::Corrupt { field, found })
}
