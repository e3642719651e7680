//! The data destination of one transfer: receives streams, and trusts only a commit.
//!
//! ```text
//!            accepted              commit, and every byte arrived once
//!  ┌────────┐         ┌───────────┐
//!  │ Asking ├────────►│  Moving   ├────────────────────────────────────► over, landed
//!  └───┬────┘         └─────┬─────┘            send Landed
//!      │ failure            │ failure
//!      │              ┌─────▼─────┐
//!      └─────────────►│  Fencing  ├──► over, no byte of this attempt can be placed any more
//!                     └───────────┘ fenced
//! ```
//!
//! Streams may arrive before the answer to the ask, on another connection, and are accepted. They must partition the
//! route: a byte that is sent twice, or lies outside, fails the transfer.

use std::collections::BTreeMap;

use crate::refusal::Failure;
use crate::stream::{StreamHeader, StreamTrailer};

/// The most streams of one transfer: 80 layers in 8 lanes need 640. At 48 bytes each, the table of a transfer stays
/// below 100 KiB.
pub const MAX_STREAMS: usize = 2048;

/// The progress of a transfer at its destination. Memory: this struct, and 48 bytes for each stream.
#[derive(Debug)]
pub(crate) struct Destination {
    bytes: u64,
    /// Admitted streams by offset, all disjoint.
    streams: BTreeMap<u64, Stream>,
    arrived: u64,
    /// The number of streams in the source's commit.
    commit: Option<u32>,
}

#[derive(Debug)]
struct Stream {
    number: u32,
    length: u64,
    whole: bool,
}

/// The reason why a data stream is rejected. The transport resets it without telling the peer why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamRefusal {
    /// No such transfer is in progress, or the nonce differs.
    #[error("the stream is of no transfer that is under way")]
    Unknown,
    /// The stream contradicts the plan or other streams; the transfer fails.
    #[error(transparent)]
    Faulty(Failure),
}

impl Destination {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, streams: BTreeMap::new(), arrived: 0, commit: None }
    }

    /// Decides whether a stream may place its bytes. Must be called before its first byte is placed.
    pub(super) fn admit(&mut self, header: &StreamHeader) -> Result<(), StreamRefusal> {
        let faulty = Err(StreamRefusal::Faulty(Failure::Streams));
        let Some(end) = header.offset.checked_add(header.length) else {
            return faulty;
        };
        let before = self.streams.range(..end).next_back();
        let overlaps = before.is_some_and(|(&offset, s)| offset + s.length > header.offset);
        let full = self.streams.len() >= MAX_STREAMS;
        if header.length == 0 || end > self.bytes || overlaps || full {
            return faulty;
        }
        let stream = Stream { number: header.stream, length: header.length, whole: false };
        self.streams.insert(header.offset, stream);
        Ok(())
    }

    /// Records the end of a stream whose bytes are all placed. `crc` is computed over the bytes that arrived.
    pub(super) fn stream_arrived(
        &mut self,
        header: &StreamHeader,
        trailer: &StreamTrailer,
        crc: u32,
    ) -> Result<(), Failure> {
        let stream = self.streams.get_mut(&header.offset);
        let Some(stream) = stream.filter(|s| s.number == header.stream && !s.whole) else {
            return Err(Failure::Streams);
        };
        check_length(stream.length, trailer.length)?;
        if trailer.crc != crc {
            return Err(Failure::Checksum { stream: header.stream, sent: trailer.crc, seen: crc });
        }
        stream.whole = true;
        self.arrived += stream.length;
        Ok(())
    }

    pub(super) fn commit(&mut self, streams: u32, bytes: u64) -> Result<(), Failure> {
        check_length(self.bytes, bytes)?;
        self.commit = Some(streams);
        Ok(())
    }

    pub(super) fn outcome(&self) -> Option<Result<(), Failure>> {
        let streams = self.commit.filter(|_| self.arrived == self.bytes)?;
        let all = streams as usize == self.streams.len();
        Some(if all { Ok(()) } else { Err(Failure::Streams) })
    }
}

fn check_length(planned: u64, found: u64) -> Result<(), Failure> {
    match planned == found {
        true => Ok(()),
        false => Err(Failure::Length { planned, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transload_plan::ids::{Nonce, TransferId};

    fn header(stream: u32, offset: u64, length: u64) -> StreamHeader {
        StreamHeader { transfer: TransferId([0; 16]), nonce: Nonce([1; 16]), stream, offset, length }
    }

    fn receiving(bytes: u64) -> Destination {
        Destination::new(bytes)
    }

    fn arrive(to: &mut Destination, header: &StreamHeader) -> Result<(), Failure> {
        let trailer = StreamTrailer { length: header.length, crc: 7 };
        to.stream_arrived(header, &trailer, 7)
    }

    #[test]
    fn lands_with_every_byte_and_the_commit_in_either_order() {
        for commit_first in [false, true] {
            let mut to = receiving(100);
            let (a, b) = (header(1, 60, 40), header(0, 0, 60));
            to.admit(&a).unwrap();
            to.admit(&b).unwrap();
            if commit_first {
                to.commit(2, 100).unwrap();
            }
            arrive(&mut to, &a).unwrap();
            assert_eq!(to.outcome(), None);
            arrive(&mut to, &b).unwrap();
            if !commit_first {
                assert_eq!(to.outcome(), None, "not without a commit");
                to.commit(2, 100).unwrap();
            }
            assert_eq!(to.outcome(), Some(Ok(())));
        }
    }

    #[test]
    fn streams_must_divide_the_route() {
        let faulty = Err(StreamRefusal::Faulty(Failure::Streams));
        let mut to = receiving(100);
        to.admit(&header(0, 20, 30)).unwrap();
        for bad in [
            header(1, 0, 21),
            header(1, 49, 1),
            header(1, 20, 1),
            header(1, 0, 100),
            header(1, 50, 51),
            header(1, u64::MAX, 2),
            header(1, 60, 0),
        ] {
            assert_eq!(to.admit(&bad), faulty, "{bad:?}");
        }
        to.admit(&header(1, 0, 20)).unwrap();
        to.admit(&header(2, 50, 50)).unwrap();
        let mut many = receiving(1 << 20);
        for i in 0..MAX_STREAMS as u32 {
            many.admit(&header(i, u64::from(i), 1)).unwrap();
        }
        assert_eq!(many.admit(&header(u32::MAX, 1 << 19, 1)), faulty);
    }

    #[test]
    fn what_arrives_damaged_fails() {
        let mut to = receiving(100);
        let stream = header(0, 0, 100);
        to.admit(&stream).unwrap();
        let trailer = StreamTrailer { length: 100, crc: 7 };
        let (stream_number, sent, seen) = (0, 7, 8);
        assert_eq!(
            to.stream_arrived(&stream, &trailer, 8),
            Err(Failure::Checksum { stream: stream_number, sent, seen })
        );
        let short = StreamTrailer { length: 99, crc: 7 };
        assert!(matches!(to.stream_arrived(&stream, &short, 7), Err(Failure::Length { .. })));
        assert_eq!(arrive(&mut to, &header(1, 0, 100)), Err(Failure::Streams));
        arrive(&mut to, &stream).unwrap();
        assert_eq!(arrive(&mut to, &stream), Err(Failure::Streams), "once");
        assert!(matches!(to.commit(1, 99), Err(Failure::Length { .. })));
        to.commit(2, 100).unwrap();
        assert_eq!(to.outcome(), Some(Err(Failure::Streams)), "no byte is missing, but a stream is");
    }
}
