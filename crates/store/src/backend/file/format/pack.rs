//! A pack: the bytes of many chunks, their index, and a trailer that locates the index.
//!
//! | part | bytes |
//! |---|---|
//! | data | chunks one after another; gaps between them have no meaning |
//! | index | for each chunk: length of its hash (1), hash, offset (8), length (8), checksum of its bytes (4) |
//! | trailer | see [`Trailer`] |

use super::{Flaw, Reader, checksum};
use crate::hash::ChunkHash;

const MAGIC: [u8; 8] = *b"kvpack\r\n";
const VERSION: u32 = 1;

pub(crate) const TRAILER: usize = 40;

/// The longest index of a pack, in bytes: 256 MiB, which is at least 3 million chunks. Indices are read as a whole.
pub(crate) const LONGEST_INDEX: u64 = 256 << 20;

/// The number of chunks that fit in any pack, whatever the lengths of their hashes.
pub(crate) const MOST_ENTRIES: u64 = LONGEST_INDEX / (ENTRY + ChunkHash::MAX as u64);

/// The longest chunk, in bytes: 16 GiB, as in the `s3` backend.
pub(crate) const LONGEST_CHUNK: u64 = 16 << 30;

/// The bytes of an index entry without its hash.
const ENTRY: u64 = 1 + 8 + 8 + 4;

/// A chunk of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The chunk's key.
    pub hash: ChunkHash,
    /// The offset of its bytes in the pack.
    pub offset: u64,
    /// The number of its bytes.
    pub len: u64,
    /// The checksum of its bytes.
    pub checksum: u32,
}

/// The last 40 bytes of a pack: length of the data (8), length of the index (8), number of entries (4),
/// checksum of the index (4), version (4), checksum of the 28 bytes before (4), magic (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// The length of the data, which is also the offset of the index.
    pub data_len: u64,
    pub index_len: u64,
    pub entries: u32,
    checksum: u32,
}

pub(in super::super) fn entry_len(hash: &ChunkHash) -> u64 {
    ENTRY + hash.as_bytes().len() as u64
}

/// Encodes the index and the trailer of a pack with `data_len` bytes of data. `None` if the index is too long.
pub(in super::super) fn encode(data_len: u64, entries: &[Entry]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for entry in entries {
        bytes.push(entry.hash.as_bytes().len() as u8);
        bytes.extend(entry.hash.as_bytes());
        bytes.extend(entry.offset.to_le_bytes());
        bytes.extend(entry.len.to_le_bytes());
        bytes.extend(entry.checksum.to_le_bytes());
    }
    if bytes.len() as u64 > LONGEST_INDEX {
        return None;
    }
    let (index_len, index) = (bytes.len(), checksum(&bytes));
    bytes.extend(data_len.to_le_bytes());
    bytes.extend((index_len as u64).to_le_bytes());
    bytes.extend(u32::try_from(entries.len()).ok()?.to_le_bytes());
    bytes.extend(index.to_le_bytes());
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(checksum(&bytes[index_len..]).to_le_bytes());
    bytes.extend(MAGIC);
    Some(bytes)
}

impl Trailer {
    /// Returns an error unless it is the trailer of a pack of exactly that length.
    pub(crate) fn decode(trailer: &[u8; TRAILER], file_len: u64) -> Result<Self, Flaw> {
        let mut fields = Reader(trailer);
        let this =
            Self { data_len: fields.u64()?, index_len: fields.u64()?, entries: fields.u32()?, checksum: fields.u32()? };
        let version = fields.u32()?;
        if fields.u32()? != checksum(&trailer[..28]) {
            return Err(Flaw::new("its trailer fails its checksum"));
        }
        if fields.array()? != MAGIC {
            return Err(Flaw::new("it does not end as a pack does"));
        }
        if version != VERSION {
            return Err(Flaw::new(format!("it has version {version}, and this program reads version {VERSION}")));
        }
        if this.index_len > LONGEST_INDEX {
            return Err(Flaw::new(format!(
                "its trailer says that its index has {} bytes, and {LONGEST_INDEX} are the most",
                this.index_len
            )));
        }
        let len = this.data_len.checked_add(this.index_len).and_then(|len| len.checked_add(TRAILER as u64));
        if len != Some(file_len) {
            return Err(Flaw::new(format!("its trailer does not fit its length of {file_len} bytes")));
        }
        Ok(this)
    }

    /// Returns an error unless the bytes are those that were written, and every entry lies inside the data.
    pub(crate) fn decode_index(&self, index: &[u8]) -> Result<Vec<Entry>, Flaw> {
        if index.len() as u64 != self.index_len || checksum(index) != self.checksum {
            return Err(Flaw::new("its index fails its checksum"));
        }
        let mut rest = Reader(index);
        let mut entries = Vec::new();
        while !rest.0.is_empty() {
            let len = usize::from(rest.u8()?);
            let hash = ChunkHash::new(rest.bytes(len)?).map_err(|e| Flaw::new(e.to_string()))?;
            let entry = Entry { hash, offset: rest.u64()?, len: rest.u64()?, checksum: rest.u32()? };
            if entry.offset.checked_add(entry.len).is_none_or(|end| end > self.data_len) {
                return Err(Flaw::new(format!("chunk {hash} lies outside of it")));
            }
            if entry.len > LONGEST_CHUNK {
                return Err(Flaw::new(format!(
                    "it says that chunk {hash} has {} bytes, and {LONGEST_CHUNK} are the most",
                    entry.len
                )));
            }
            entries.push(entry);
        }
        if entries.len() as u64 != u64::from(self.entries) {
            return Err(Flaw::new("its trailer counts other entries than its index has"));
        }
        Ok(entries)
    }
}

/// Parses the index of a whole pack.
///
/// # Errors
/// Returns an error unless the bytes are a pack. The chunks' own bytes are not checked.
pub fn decode(pack: &[u8]) -> Result<Vec<Entry>, Flaw> {
    let (rest, trailer) =
        pack.split_last_chunk::<TRAILER>().ok_or_else(|| Flaw::new("it is shorter than a trailer"))?;
    let trailer = Trailer::decode(trailer, pack.len() as u64)?;
    let index = usize::try_from(trailer.data_len)
        .ok()
        .and_then(|from| rest.get(from..))
        .ok_or_else(|| Flaw::new("it ends too early"))?;
    trailer.decode_index(index)
}
