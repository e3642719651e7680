//! `kill -9` of real processes in the midst of pulls and pushes, at moments drawn from a seed.
//!
//! The survivor is this process, where it can be looked into; the others are this binary once more, as
//! [`other`]. However a round ends: what was reported as good is good to the last byte, nothing is
//! written after a failure was reported, every lease ends once and with a reason, nothing is left over,
//! and the same survivor serves the next round.
//!
//! `TRANSLOAD_TEST_KILLS` is how many rounds each test goes, `TRANSLOAD_TEST_SEED` with which seed.
//!
//! - [`destinations`]: who pulls, while its sources die.
//! - [`sources`]: who is pulled from, while its destinations die.
//! - [`openings`]: who is pushed to, while the pusher dies.
//! - [`heard`]: who is heard of at once when it dies, and waited for when it stands still.
//! - [`on_gpu`]: the first two with all caches on a GPU.
//! - [`slots`]: the same where the other's GPU stands still, or is lost, while it has slots of a ring.

mod blow;
mod destinations;
mod heard;
#[cfg(target_os = "linux")]
mod on_gpu;
mod openings;
mod other;
mod peer;
mod request;
mod siege;
#[cfg(target_os = "linux")]
mod slots;
mod sources;
