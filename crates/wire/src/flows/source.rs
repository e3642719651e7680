//! The data source of one transfer: reads blocks, and commits.
//!
//! ```text
//!            accepted, may read            last byte read, prefill over,
//!                                          lease alive
//!  ┌────────┐         ┌─────────┐                           ┌───────────┐  landed
//!  │ Asking ├────────►│ Moving  ├──────────────────────────►│ Committed ├─────────► over
//!  │ Waiting│         └────┬────┘          send Commit      └─────┬─────┘
//!  └───┬────┘              │ failure                              │ failure
//!      │ failure           ▼                                      │
//!      │              ┌─────────┐◄────────────────────────────────┘
//!      ▼              │ Fencing ├──► over, the blocks are free
//!     over            └─────────┘ fenced
//! ```
//!
//! This holds for a pull, where the source owns the lease, and for a push, where it has asked. Between `Moving` and the
//! end of `Fencing` the blocks must not change, so the transfer pins the lease.

use crate::refusal::Failure;

/// Counts the bytes that a transfer has read. Memory: this struct, for a route of any size.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(super) prefilled: bool,
    /// Bytes of finished streams.
    pub(super) sent: u64,
    pub(super) streams: u32,
}

impl Source {
    /// Records a completely written stream, whose memory is no longer read. A wrong sum is a fault of this process.
    pub(super) fn stream_sent(&mut self, bytes: u64, planned: u64) -> Result<(), Failure> {
        let found = self.sent.saturating_add(bytes);
        if found > planned {
            let why = format!("{found} bytes were sent of {planned}").into();
            return Err(Failure::Local { why });
        }
        self.sent = found;
        self.streams = self.streams.saturating_add(1);
        Ok(())
    }
}
