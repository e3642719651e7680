//! The bytes of a stream after its header, on any path: they are placed, counted and summed.

use std::ops::Range;

use super::{
    coded::Decoder,
    error::ReceiveError,
    fence::Inside,
    landing::Landing,
    operation::{Operation, Operations},
    region::RegionCursor,
    route_bytes::RouteCursor,
};
use transload_memory::copy::Crc32c;
use transload_wire::internal::stream::{StreamHeader, StreamTrailer, TRAILER};

/// Takes the bytes of one stream as they arrive, cut anywhere.
#[derive(Debug)]
pub(crate) struct Intake {
    landing: Landing,
    pub(super) cursor: RouteCursor,
    /// Decodes bytes that come in a codec.
    pub(super) decoder: Option<Decoder>,
    pub(super) sum: Crc32c,
    pub(super) length: u64,
    left: u64,
    trailer: [u8; TRAILER],
    trailer_got: usize,
}

impl Intake {
    /// Prepares for the bytes that the header announces. They must be in the route.
    pub(crate) fn new(landing: &Landing, header: &StreamHeader) -> Result<Self, ReceiveError> {
        let route = landing.route();
        let outside = ReceiveError::Outside { offset: header.offset, length: header.length, bytes: route.bytes() };
        let end = header.offset.checked_add(header.length);
        let fits = |end: &u64| {
            let cuts = [header.offset, *end];
            *end <= route.bytes() && cuts.iter().all(|at| route.cut(*at) == *at)
        };
        let Some(end) = end.filter(fits) else {
            return Err(outside);
        };
        Ok(Self {
            landing: landing.clone(),
            cursor: route.cursor(header.offset..end)?,
            decoder: Decoder::new(route),
            sum: Crc32c::new(),
            length: header.length,
            left: header.length,
            trailer: [0; TRAILER],
            trailer_got: 0,
        })
    }

    /// Grants access to the memory, unless the transfer is fenced.
    pub(crate) fn enter(&self) -> Option<Inside> {
        self.landing.enter()
    }

    /// Takes the next bytes. They are in place once the operations of [`submit`](Self::submit) are done.
    pub(crate) async fn take(&mut self, bytes: &[u8], inside: &Inside) -> Result<(), ReceiveError> {
        let body = match &mut self.decoder {
            None => {
                let body = self.body(bytes.len());
                let (sum, own) = (&mut self.sum, &bytes[..body]);
                self.cursor.scatter(own, sum, inside).await?;
                self.placed(body);
                body
            }
            Some(decoder) => {
                let before = self.cursor.remaining();
                let body = decoder.take(bytes, &mut self.cursor, inside).await?;
                self.sum.update(&bytes[..body]);
                self.placed((before - self.cursor.remaining()) as usize);
                body
            }
        };
        let rest = &bytes[body..];
        self.take_trailer(rest.len(), |trailer| trailer.copy_from_slice(rest))
    }

    /// Takes the next `bytes` bytes from memory of which no slice may be made. `scatter` places and sums a range of
    /// them, or returns the operation that will place it; `copy` copies the bytes from an offset on. This waits only
    /// for bytes in a codec, as [`take`](Self::take) does.
    pub(crate) async fn take_raw(
        &mut self,
        bytes: usize,
        inside: &Inside,
        mut scatter: impl FnMut(Range<usize>, &mut RegionCursor, &mut Crc32c) -> Result<Option<Operation<()>>, ReceiveError>,
        copy: impl Fn(usize, &mut [u8]),
    ) -> Result<(), ReceiveError> {
        if self.decoder.is_some() {
            let mut copied = vec![0; bytes];
            copy(0, &mut copied);
            return self.take(&copied, inside).await;
        }
        let (body, sum) = (self.body(bytes), &mut self.sum);
        self.cursor.each_section(body, inside, |cursor, range| scatter(range, cursor, sum))?;
        self.placed(body);
        self.take_trailer(bytes - body, |trailer| copy(body, trailer))
    }

    /// Submits the bytes taken so far to the memory. Must be called on the thread that took them, before their arrival
    /// or the end of the fence is reported.
    pub(crate) fn submit(&mut self, inside: &Inside) -> Operations {
        self.cursor.submit(inside)
    }

    /// Returns how many of the next bytes belong to the route.
    pub(super) fn body(&self, bytes: usize) -> usize {
        bytes.min(usize::try_from(self.left).unwrap_or(usize::MAX))
    }

    pub(super) fn placed(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        self.landing.count_placed(bytes as u64);
    }

    pub(super) fn take_trailer(&mut self, bytes: usize, copy: impl FnOnce(&mut [u8])) -> Result<(), ReceiveError> {
        let got = self.trailer_got + bytes;
        let Some(trailer) = self.trailer.get_mut(self.trailer_got..got) else {
            let planned = self.length;
            return Err(ReceiveError::TooLong { planned });
        };
        copy(trailer);
        self.trailer_got = got;
        Ok(())
    }

    /// Returns whether the trailer, and thus everything, has arrived.
    pub(crate) fn is_whole(&self) -> bool {
        self.trailer_got == TRAILER
    }

    /// Checks, at the end of the stream, that everything has arrived unchanged.
    pub(crate) fn end(self) -> Result<(StreamTrailer, u32), ReceiveError> {
        let planned = self.length;
        if self.left > 0 || self.trailer_got < TRAILER {
            let found = planned - self.left;
            return Err(ReceiveError::TooShort { planned, found });
        }
        let (trailer, seen) = (StreamTrailer::decode(&self.trailer), self.sum.value());
        if trailer.length != planned {
            let found = trailer.length;
            return Err(ReceiveError::Length { planned, found });
        }
        if trailer.crc != seen {
            let sent = trailer.crc;
            return Err(ReceiveError::Checksum { sent, seen });
        }
        Ok((trailer, seen))
    }
}
