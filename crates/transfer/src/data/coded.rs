//! The bytes of a route as a codec encodes them, piece by piece.
//!
//! An encoded piece has the length of what its codec stores exactly (a little-endian u32), then its codes, then the
//! exact part. Streams announce and count bytes of the route as they are in memory; their checksum is over the encoded
//! bytes.

use std::ops::Range;

use super::{
    error::ReceiveError,
    fence::Inside,
    operation::RegionError,
    route_bytes::{RouteBytes, RouteCursor},
};
use transload_memory::copy::{Crc32c, StreamError};
use transload_plan::Pieces;
use transload_plan::codec::{Codec, Undecodable};

/// Bytes of the length field before each piece.
const LENGTH: usize = 4;

/// Pieces are encoded until there are this many bytes to send.
const SEND: usize = 128 << 10;

/// Returns the number of bytes of a piece's codes.
fn codes(codec: Codec, pieces: Pieces, bytes: usize) -> usize {
    let coded = pieces.rows.and_then(|rows| {
        let tokens = bytes / rows.bytes(1)?.max(1);
        codec.encoded_bytes(rows, tokens)
    });
    coded.unwrap_or(bytes)
}

/// Reads a range of a route, and encodes it.
#[derive(Debug)]
pub(crate) struct Encoder {
    route: RouteBytes,
    cursor: RouteCursor,
    piece: Vec<u8>,
    exact: Vec<u8>,
}

impl Encoder {
    /// Makes an encoder for a range of whole pieces, all of which may be read already.
    pub(crate) fn new(route: &RouteBytes, range: Range<u64>) -> Result<Self, StreamError> {
        Ok(Self { cursor: route.cursor(range)?, route: route.clone(), piece: Vec::new(), exact: Vec::new() })
    }

    /// Returns the next encoded pieces, and their number of bytes in the route. `None` at the end of the range.
    pub(crate) async fn next(&mut self, inside: &Inside) -> Result<Option<(Vec<u8>, u64)>, RegionError> {
        let (codec, before) = (self.route.codec(), self.cursor.remaining());
        let mut coded = Vec::new();
        while coded.len() < SEND && self.cursor.remaining() > 0 {
            let (pieces, bytes) = self.route.piece(self.cursor.position());
            self.piece.resize(bytes, 0);
            // The checksum is over the encoded bytes, so this one is not used.
            let mut unused = Crc32c::new();
            let piece = &mut self.piece[..];
            self.cursor.gather(piece, &mut unused, inside).await?;
            let start = coded.len();
            coded.extend_from_slice(&[0; LENGTH]);
            self.exact.clear();
            match pieces.rows {
                Some(rows) => codec.encode(rows, piece, &mut coded, &mut self.exact),
                None => coded.extend_from_slice(piece),
            }
            let exact = self.exact.len() as u32;
            coded[start..start + LENGTH].copy_from_slice(&exact.to_le_bytes());
            coded.extend_from_slice(&self.exact);
        }
        let read = before - self.cursor.remaining();
        Ok((read > 0).then_some((coded, read)))
    }
}

/// Decodes what arrives of a range of whole pieces, and scatters it.
#[derive(Debug)]
pub(crate) struct Decoder {
    route: RouteBytes,
    /// The part of a piece that has arrived.
    coming: Vec<u8>,
    piece: Vec<u8>,
}

impl Decoder {
    /// Makes a decoder for a route, or returns `None` if the route's codec is exact.
    pub(crate) fn new(route: &RouteBytes) -> Option<Self> {
        (!route.codec().is_exact()).then(|| Self { route: route.clone(), coming: Vec::new(), piece: Vec::new() })
    }

    /// Takes the next bytes, and scatters complete pieces at the cursor. Returns how many of the bytes belong to
    /// pieces, before the cursor's end.
    pub(crate) async fn take(
        &mut self,
        bytes: &[u8],
        cursor: &mut RouteCursor,
        inside: &Inside,
    ) -> Result<usize, ReceiveError> {
        let codec = self.route.codec();
        let mut left = bytes;
        while cursor.remaining() > 0 {
            let (pieces, whole) = self.route.piece(cursor.position());
            let exact = self.coming.first_chunk().copied().map(u32::from_le_bytes);
            let exact = exact.map_or(0, |exact| exact as usize);
            // The exact part is never longer than the piece itself. This limits how much a peer can make us keep.
            if exact > whole {
                let (needed, given) = (whole, exact);
                return Err(Undecodable::Length { needed, given }.into());
            }
            // The length of the body is known only once the length field has arrived.
            let body = match self.coming.len() {
                0..LENGTH => 0,
                _ => codes(codec, pieces, whole) + exact,
            };
            let missing = LENGTH + body - self.coming.len();
            if missing > 0 {
                if left.is_empty() {
                    break;
                }
                let (now, later) = left.split_at(missing.min(left.len()));
                self.coming.extend_from_slice(now);
                left = later;
                continue;
            }
            let (codes, mut rest) = self.coming[LENGTH..].split_at(body - exact);
            self.piece.resize(whole, 0);
            match pieces.rows {
                Some(rows) => codec.decode(rows, codes, &mut rest, &mut self.piece)?,
                None => self.piece.copy_from_slice(codes),
            }
            // The codec must have used the whole exact part.
            if !rest.is_empty() {
                let (needed, given) = (exact - rest.len(), exact);
                return Err(Undecodable::Length { needed, given }.into());
            }
            // The checksum is over the encoded bytes, so this one is not used.
            let (piece, mut unused) = (&self.piece, Crc32c::new());
            cursor.scatter(piece, &mut unused, inside).await?;
            self.coming.clear();
        }
        Ok(bytes.len() - left.len())
    }
}
