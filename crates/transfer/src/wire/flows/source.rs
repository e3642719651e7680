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
//! The same for a pull, where the source holds a lease, and for a push, where it has asked. Between
//! `Moving` and the end of `Fencing` the blocks must not change; that is what pins the lease.

use crate::wire::refusal::Failure;

/// Counts what a transfer has read. Memory: this struct, whatever the route's size.
#[derive(Debug)]
pub(crate) struct Source {
    bytes: u64,
    pub(super) prefilled: bool,
    /// Bytes of finished streams.
    sent: u64,
    streams: u32,
}

impl Source {
    pub(super) fn new(bytes: u64, prefilled: bool) -> Self {
        Self {
            bytes,
            prefilled,
            sent: 0,
            streams: 0,
        }
    }

    /// A stream is written whole, and its memory read. Where the counts do not add up, that is a fault of this process.
    pub(super) fn stream_sent(&mut self, bytes: u64) -> Result<(), Failure> {
        let (planned, found) = (self.bytes, self.sent.saturating_add(bytes));
        if found > planned {
            let why = format!("{found} bytes were sent of {planned}").into();
            return Err(Failure::Local { why });
        }
        self.sent = found;
        self.streams = self.streams.saturating_add(1);
        Ok(())
    }

    /// Whether nothing is left to read: what was read before the prefill was over may have been half computed.
    pub(super) fn has_read_all(&self) -> bool {
        self.prefilled && self.sent == self.bytes
    }

    /// What the commit has to say: streams and bytes.
    pub(super) fn counts(&self) -> (u32, u64) {
        (self.streams, self.sent)
    }
}
