//! A manifest's file: a header, its name, the chunks that were put before it, and its bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic `kvmanif\n` |
//! | 4 | version, 1 |
//! | 4 | length of the name |
//! | 8 | length of the references |
//! | 8 | length of the data |
//! | 4 | checksum of everything behind the header |
//! | 4 | checksum of the 36 bytes before it |
//! | | the name, UTF-8 |
//! | | the references, ascending: length of a hash (1 byte), hash |
//! | | the data |

use super::{Flaw, Reader, checksum};
use crate::hash::ChunkHash;
use crate::name::ManifestName;

const MAGIC: [u8; 8] = *b"kvmanif\n";
const VERSION: u32 = 1;
const HEADER: usize = 40;

/// The longest file of a manifest, in bytes: 1 GiB. Files are read as a whole.
pub(crate) const LONGEST: u64 = 1 << 30;

/// The parsed file of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest<'a> {
    /// Its name.
    pub name: &'a str,
    references: &'a [u8],
    /// The manifest's bytes.
    pub data: &'a [u8],
}

/// Encodes the file of a manifest. `references` are ascending.
pub(in super::super) fn encode(name: &str, references: &[ChunkHash], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend(name.as_bytes());
    for hash in references {
        bytes.push(hash.as_bytes().len() as u8);
        bytes.extend(hash.as_bytes());
    }
    let references_len = bytes.len() - HEADER - name.len();
    bytes.extend(data);
    let body = checksum(&bytes[HEADER..]);
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend((name.len() as u32).to_le_bytes());
    header.extend((references_len as u64).to_le_bytes());
    header.extend((data.len() as u64).to_le_bytes());
    header.extend(body.to_le_bytes());
    header.extend(checksum(&header).to_le_bytes());
    bytes[..HEADER].copy_from_slice(&header);
    bytes
}

impl<'a> Manifest<'a> {
    /// Parses a whole file.
    ///
    /// # Errors
    /// Returns an error unless the bytes are exactly those that were written.
    pub fn decode(file: &'a [u8]) -> Result<Self, Flaw> {
        let mut rest = Reader(file);
        let mut header = Reader(rest.bytes(HEADER)?);
        let checked = checksum(&header.0[..HEADER - 4]);
        let (magic, version) = (header.array::<8>()?, header.u32()?);
        let (name, references, data) = (header.u32()?, header.u64()?, header.u64()?);
        let body = header.u32()?;
        if header.u32()? != checked {
            return Err(Flaw::new("its header fails its checksum"));
        }
        if magic != MAGIC {
            return Err(Flaw::new("it does not begin as a manifest does"));
        }
        if version != VERSION {
            return Err(Flaw::new(format!("it has version {version}, and this program reads version {VERSION}")));
        }
        let len = u64::from(name).checked_add(references).and_then(|len| len.checked_add(data));
        if len != Some(rest.0.len() as u64) {
            return Err(Flaw::new("its header does not fit its length"));
        }
        if body != checksum(rest.0) {
            return Err(Flaw::new("it fails its checksum"));
        }
        // The sum of the lengths was checked, so the casts cannot truncate.
        let name = std::str::from_utf8(rest.bytes(name as usize)?).map_err(|_| Flaw::new("its name is not UTF-8"))?;
        ManifestName::new(name).map_err(|error| Flaw::new(error.to_string()))?;
        let references = rest.bytes(references as usize)?;
        let this = Self { name, references, data: rest.0 };
        let mut left = Reader(references);
        let mut before = None;
        while !left.0.is_empty() {
            let len = usize::from(left.u8()?);
            let hash = ChunkHash::new(left.bytes(len)?).map_err(|e| Flaw::new(e.to_string()))?;
            if before.replace(hash) >= Some(hash) {
                return Err(Flaw::new("its references are not in order"));
            }
        }
        Ok(this)
    }

    /// Returns the chunks that were put on the same handle since its previous manifest, in ascending order.
    pub fn references(&self) -> impl Iterator<Item = ChunkHash> + 'a {
        let mut rest = Reader(self.references);
        std::iter::from_fn(move || {
            let len = usize::from(rest.u8().ok()?);
            ChunkHash::new(rest.bytes(len).ok()?).ok()
        })
    }
}
