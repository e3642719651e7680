//! Decompresses an answer as its bytes arrive.

use std::io::Write;

use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use http::HeaderValue;

/// The error for a compressed body that cannot be decoded or ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undecodable;

/// A decoder for `gzip` and `deflate`. Other encodings are not supported: servers were asked for none at all.
pub(crate) enum Decoder {
    Identity,
    Gzip(MultiGzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl Decoder {
    pub(crate) fn new(encoding: &HeaderValue) -> Option<Self> {
        let encoding = encoding.to_str().ok()?.trim().to_ascii_lowercase();
        Some(match &*encoding {
            "" | "identity" => Self::Identity,
            "gzip" | "x-gzip" => Self::Gzip(MultiGzDecoder::new(Vec::new())),
            "deflate" => Self::Deflate(ZlibDecoder::new(Vec::new())),
            _ => return None,
        })
    }

    pub(crate) fn feed(&mut self, bytes: &Bytes) -> Result<Bytes, Undecodable> {
        // The flush makes the decoder give out all that it can decode so far.
        let written = match self {
            Self::Identity => return Ok(bytes.clone()),
            Self::Gzip(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Self::Deflate(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
        };
        written.map_err(|_| Undecodable)?;
        Ok(self.take())
    }

    pub(crate) fn finish(&mut self) -> Result<Bytes, Undecodable> {
        match self {
            Self::Identity => return Ok(Bytes::new()),
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Deflate(decoder) => decoder.try_finish(),
        }
        .map_err(|_| Undecodable)?;
        Ok(self.take())
    }

    fn take(&mut self) -> Bytes {
        let out = match self {
            Self::Identity => return Bytes::new(),
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
        };
        std::mem::take(out).into()
    }
}
