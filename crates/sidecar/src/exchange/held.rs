//! An answer that is held until it is whole.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::budget::{Budget, Share};
use crate::usage::Decoder;

/// What has come of an answer, without its compression.
pub(super) struct Held {
    bytes: BytesMut,
    share: Share,
    decoder: Option<Box<Decoder>>,
    limit: usize,
}

impl Held {
    /// How many bytes of a compressed answer are decoded at a time: a bound is noticed before a thousand times as many are held.
    const STEP: usize = 4 << 10;

    /// Begins with the answer's headers; not so if it is in a coding that is not known. At most `limit` bytes are held, out of
    /// what is left for bodies.
    pub(super) fn new(headers: &HeaderMap, limit: usize, bodies: &Arc<Budget>) -> Option<Self> {
        let decoder = match headers.get(CONTENT_ENCODING) {
            None => None,
            Some(coding) => Some(Box::new(Decoder::new(coding)?)),
        };
        Some(Self { bytes: BytesMut::new(), share: bodies.share(), decoder, limit })
    }

    /// Takes the next bytes; tells what is wrong with the answer otherwise.
    pub(super) fn take(&mut self, mut bytes: Bytes) -> Result<(), &'static str> {
        let Some(mut decoder) = self.decoder.take() else {
            return self.push(&bytes);
        };
        while !bytes.is_empty() {
            let step = bytes.split_to(bytes.len().min(Self::STEP));
            let decoded = decoder.feed(&step).map_err(|_| UNDECODABLE)?;
            self.push(&decoded)?;
        }
        self.decoder = Some(decoder);
        Ok(())
    }

    /// The whole answer, once it has ended.
    pub(super) fn whole(mut self) -> Result<Bytes, &'static str> {
        if let Some(mut decoder) = self.decoder.take() {
            let last = decoder.finish().map_err(|_| UNDECODABLE)?;
            self.push(&last)?;
        }
        Ok(self.share.hold(self.bytes.freeze()))
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(TOO_LONG);
        }
        self.bytes.extend_from_slice(bytes);
        match self.share.grow_to(self.bytes.capacity()) {
            true => Ok(()),
            false => Err(NO_ROOM),
        }
    }
}

/// Says that this process has no memory for an answer: the server is not at fault.
pub(super) const NO_ROOM: &str = "finds no memory left (--body-memory)";
pub(super) const TOO_LONG: &str = "is longer than --body-limit";
const UNDECODABLE: &str = "cannot be decoded";
