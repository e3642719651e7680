//! Data streams: the header and the trailer around the bytes on a lane.
//!
//! A stream carries one range of a route's bytes, in plan order. It begins with a header of
//! [`HEADER`] bytes and ends with a trailer of [`TRAILER`] bytes; everything is little endian.
//!
//! | bytes | header |
//! |---|---|
//! | 4 | `TLD` and the version, 1 |
//! | 16 | transfer |
//! | 16 | nonce of the attempt |
//! | 4 | number of the stream in its transfer, from 0 |
//! | 8 | offset of its first byte in the route |
//! | 8 | length in bytes |
//!
//! | bytes | trailer |
//! |---|---|
//! | 8 | length in bytes, again: a stream that was cut and mended is noticed |
//! | 4 | CRC32C (Castagnoli, as in iSCSI) of the bytes |

use transload_plan::ids::{Nonce, TransferId};

/// The length of a header in bytes.
pub const HEADER: usize = 56;

/// The length of a trailer in bytes.
pub const TRAILER: usize = 12;

const MAGIC: [u8; 4] = *b"TLD\x01";

/// The header of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// The transfer.
    pub transfer: TransferId,
    /// The secret of its attempt.
    pub nonce: Nonce,
    /// The stream's number in its transfer.
    pub stream: u32,
    /// The position of its first byte in the route, in bytes.
    pub offset: u64,
    /// The number of bytes that it carries.
    pub length: u64,
}

/// The trailer of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTrailer {
    /// The number of bytes that the stream carried.
    pub length: u64,
    /// The CRC32C of those bytes.
    pub crc: u32,
}

/// The first bytes of a stream are not those of a data stream of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a data stream of this version: it begins with {found:02x?}")]
pub struct NotAStream {
    /// The first bytes of the stream.
    pub found: [u8; 4],
}

impl StreamHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..20].copy_from_slice(&self.transfer.0);
        bytes[20..36].copy_from_slice(&self.nonce.0);
        bytes[36..40].copy_from_slice(&self.stream.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.offset.to_le_bytes());
        bytes[48..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, NotAStream> {
        let found = array(bytes, 0);
        if found != MAGIC {
            return Err(NotAStream { found });
        }
        Ok(Self {
            transfer: TransferId(array(bytes, 4)),
            nonce: Nonce(array(bytes, 20)),
            stream: u32::from_le_bytes(array(bytes, 36)),
            offset: u64::from_le_bytes(array(bytes, 40)),
            length: u64::from_le_bytes(array(bytes, 48)),
        })
    }
}

impl StreamTrailer {
    /// Encodes the trailer.
    pub fn encode(&self) -> [u8; TRAILER] {
        let mut bytes = [0; TRAILER];
        bytes[..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Decodes a trailer.
    pub fn decode(bytes: &[u8; TRAILER]) -> Self {
        Self { length: u64::from_le_bytes(array(bytes, 0)), crc: u32::from_le_bytes(array(bytes, 8)) }
    }
}

/// Returns the `N` bytes from `at` on. Panics if they are not all inside `bytes`.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_trailers_come_back() {
        let header = StreamHeader {
            transfer: TransferId([3; 16]),
            nonce: Nonce([4; 16]),
            stream: 5,
            offset: 1 << 40,
            length: u64::MAX,
        };
        assert_eq!(StreamHeader::decode(&header.encode()), Ok(header));
        assert_eq!(header.encode()[36..41], [5, 0, 0, 0, 0]);
        let trailer = StreamTrailer { length: 7, crc: 8 };
        assert_eq!(StreamTrailer::decode(&trailer.encode()), trailer);
    }

    #[test]
    fn other_versions_are_noticed() {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(b"TLD\x02");
        let found = *b"TLD\x02";
        assert_eq!(StreamHeader::decode(&bytes), Err(NotAStream { found }));
    }
}
