//! Buffers an answer until it is complete.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::budget::{Budget, Share};
use crate::usage::Decoder;

/// The part of an answer that has arrived, decompressed.
pub(super) struct Held {
    bytes: BytesMut,
    share: Share,
    decoder: Option<Box<Decoder>>,
    limit: usize,
}

impl Held {
    /// The number of compressed bytes that are decoded at a time. Compression expands by at most about a thousand, so
    /// little more than the limit is ever held.
    const STEP: usize = 4 << 10;

    /// Starts to buffer an answer of at most `limit` bytes, which count against `bodies`. Returns `None` if its
    /// `Content-Encoding` is unknown.
    pub(super) fn new(headers: &HeaderMap, limit: usize, bodies: &Arc<Budget>) -> Option<Self> {
        let decoder = match headers.get(CONTENT_ENCODING) {
            None => None,
            Some(coding) => Some(Box::new(Decoder::new(coding)?)),
        };
        Some(Self { bytes: BytesMut::new(), share: bodies.share(), decoder, limit })
    }

    /// Appends the next bytes. An error says what is wrong with the answer.
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

/// The error for want of memory in this process; the server is not at fault.
pub(super) const NO_ROOM: &str = "finds no memory left (--body-memory)";
pub(super) const TOO_LONG: &str = "is longer than --body-limit";
const UNDECODABLE: &str = "cannot be decoded";
