//! What arrives on one stream behind its header, on whatever path: placed, counted and summed.

use super::{landing::Landing, receive::ReceiveError, route_bytes::RouteCursor};
use crate::{
    copy::Crc32c,
    wire::stream::{StreamHeader, StreamTrailer, TRAILER},
};

/// The bytes of one stream, as they arrive, in pieces cut anywhere.
#[derive(Debug)]
pub(crate) struct Intake {
    landing: Landing,
    cursor: RouteCursor,
    sum: Crc32c,
    length: u64,
    left: u64,
    trailer: [u8; TRAILER],
    trailer_got: usize,
}

impl Intake {
    /// Ready for what the header announces, which has to lie in the route.
    pub(crate) fn new(landing: &Landing, header: &StreamHeader) -> Result<Self, ReceiveError> {
        let route = landing.route();
        let outside = ReceiveError::Outside {
            offset: header.offset,
            length: header.length,
            bytes: route.bytes(),
        };
        let end = header.offset.checked_add(header.length);
        if end.is_none_or(|end| end > route.bytes()) {
            return Err(outside);
        }
        Ok(Self {
            landing: landing.clone(),
            cursor: route.cursor(header.offset)?,
            sum: Crc32c::new(),
            length: header.length,
            left: header.length,
            trailer: [0; TRAILER],
            trailer_got: 0,
        })
    }

    /// Places the next bytes.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), ReceiveError> {
        let body = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (body, rest) = bytes.split_at(body);
        if !body.is_empty() {
            self.cursor.scatter(body, &mut self.sum)?;
            self.left -= body.len() as u64;
            self.landing.count_placed(body.len() as u64);
        }
        let got = self.trailer_got + rest.len();
        match self.trailer.get_mut(self.trailer_got..got) {
            Some(trailer) => trailer.copy_from_slice(rest),
            None => return Err(ReceiveError::TooLong { planned: self.length }),
        }
        self.trailer_got = got;
        Ok(())
    }

    /// The stream has ended: checks that all of it is there, and as it was sent.
    pub(crate) fn end(mut self) -> Result<(StreamTrailer, u32), ReceiveError> {
        self.cursor.settle();
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
