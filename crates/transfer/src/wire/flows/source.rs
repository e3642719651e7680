//! The data source of one transfer: reads blocks, and commits.
//!
//! ```text
//!            accepted, may read            last byte read, prefill over,
//!                                          lease alive
//!  ┌────────┐         ┌─────────┐                           ┌───────────┐  landed
//!  │ Asking ├────────►│ Reading ├──────────────────────────►│ Committed ├─────────► over
//!  │ Waiting│         └────┬────┘          send Commit      └─────┬─────┘
//!  └───┬────┘              │ failure                              │ failure
//!      │ failure           ▼                                      │
//!      │              ┌─────────┐◄────────────────────────────────┘
//!      ▼              │ Fencing ├──► over, the blocks are free
//!     over            └─────────┘ fenced
//! ```
//!
//! The same for a pull, where the source holds a lease, and for a push, where it has asked. Between
//! `Reading` and the end of `Fencing` the blocks must not change; that is what pins the lease.

use crate::wire::news::Why;

/// Counts what a transfer has read. Memory: this struct, whatever the route's size.
#[derive(Debug)]
pub(in crate::wire) struct Source {
    phase: Phase,
    bytes: u64,
    by_layer: bool,
    prefilled: bool,
    /// Bytes of finished streams.
    sent: u64,
    streams: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Phase {
    /// Has asked to push and waits for the answer.
    Asking,
    /// May not read yet: the prefill is not over.
    Waiting,
    Reading,
    Committed,
    Fencing(Why),
}

/// The counts of an agent do not add up. A fault of this process, not of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) struct Miscount {
    pub(in crate::wire) planned: u64,
    pub(in crate::wire) found: u64,
}

impl Source {
    /// One whose peer has still to accept it.
    pub(in crate::wire) fn asking(bytes: u64, by_layer: bool, prefilled: bool) -> Self {
        Self {
            phase: Phase::Asking,
            bytes,
            by_layer,
            prefilled,
            sent: 0,
            streams: 0,
        }
    }

    /// One that was asked for, and is accepted.
    pub(in crate::wire) fn accepted(bytes: u64, by_layer: bool, prefilled: bool) -> Self {
        let mut source = Self::asking(bytes, by_layer, prefilled);
        source.accept();
        source
    }

    /// The peer accepts. Tells whether that is news.
    pub(in crate::wire) fn accept(&mut self) -> bool {
        let news = self.phase == Phase::Asking;
        if news {
            self.phase = Phase::Waiting;
        }
        news
    }

    pub(in crate::wire) fn finish_prefill(&mut self) {
        self.prefilled = true;
    }

    /// Begins to read, if it may and has not. Tells whether it does so now.
    pub(in crate::wire) fn begin(&mut self) -> bool {
        let begins = self.phase == Phase::Waiting && (self.prefilled || self.by_layer);
        if begins {
            self.phase = Phase::Reading;
        }
        begins
    }

    /// A stream is written whole, and its memory read.
    pub(in crate::wire) fn stream_sent(&mut self, bytes: u64) -> Result<(), Miscount> {
        let found = self.sent.saturating_add(bytes);
        if found > self.bytes {
            let planned = self.bytes;
            return Err(Miscount { planned, found });
        }
        self.sent = found;
        self.streams = self.streams.saturating_add(1);
        Ok(())
    }

    /// Whether nothing is left to read, so that only the lease decides about the commit.
    pub(in crate::wire) fn is_read(&self) -> bool {
        self.phase == Phase::Reading && self.prefilled && self.sent == self.bytes
    }

    pub(in crate::wire) fn is_reading(&self) -> bool {
        self.phase == Phase::Reading
    }

    pub(in crate::wire) fn is_committed(&self) -> bool {
        self.phase == Phase::Committed
    }

    /// Notes the commit. Gives what it has to say: streams and bytes.
    pub(in crate::wire) fn commit(&mut self) -> (u32, u64) {
        self.phase = Phase::Committed;
        (self.streams, self.sent)
    }

    pub(in crate::wire) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Fails it. The first failure stays.
    pub(in crate::wire) fn fence(&mut self, why: Why) {
        if !matches!(self.phase, Phase::Fencing(_)) {
            self.phase = Phase::Fencing(why);
        }
    }

    /// Whether the peer shall hear from time to time that waiting is worth it.
    pub(in crate::wire) fn waits_for_prefill(&self) -> bool {
        !self.prefilled && matches!(self.phase, Phase::Waiting | Phase::Reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::refusal::Failure;

    fn reading(bytes: u64) -> Source {
        let mut source = Source::accepted(bytes, false, true);
        assert!(source.begin() && !source.begin());
        source
    }

    #[test]
    fn is_read_after_the_last_byte() {
        let mut source = reading(100);
        source.stream_sent(60).unwrap();
        assert!(!source.is_read());
        source.stream_sent(40).unwrap();
        assert!(source.is_read());
        assert_eq!(source.commit(), (2, 100));
        assert!(!source.is_read(), "once");
        let (planned, found) = (100, 101);
        assert_eq!(source.stream_sent(1), Err(Miscount { planned, found }));
    }

    #[test]
    fn waits_for_the_prefill_unless_by_layer() {
        let mut source = Source::accepted(10, false, false);
        assert!(!source.begin() && source.waits_for_prefill());
        source.finish_prefill();
        assert!(source.begin() && !source.waits_for_prefill());

        let mut source = Source::accepted(10, true, false);
        assert!(source.begin() && source.waits_for_prefill());
        source.stream_sent(10).unwrap();
        assert!(
            !source.is_read(),
            "what was read may have been half computed"
        );
        source.finish_prefill();
        assert!(source.is_read());
    }

    #[test]
    fn the_first_failure_stays() {
        let mut source = reading(100);
        source.fence(Why::Failed(Failure::Streams));
        source.fence(Why::Failed(Failure::Cancelled));
        assert_eq!(
            *source.phase(),
            Phase::Fencing(Why::Failed(Failure::Streams))
        );
        source.accept();
        assert!(!source.begin() && !source.is_read());
    }
}
