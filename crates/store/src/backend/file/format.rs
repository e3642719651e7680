//! The bytes of a store's files, as `docs/src/reference/file-store.md` describes them.
//!
//! All numbers are little-endian. Every part has its own checksum, which is checked before a length or an offset in it
//! is used.

pub(crate) mod manifest;
pub(crate) mod pack;

/// Describes why bytes are not a valid file of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Flaw(pub(super) String);

impl Flaw {
    fn new(how: impl Into<String>) -> Self {
        Self(how.into())
    }
}

pub(crate) const MARKER: &[u8] = b"kv_store file, version 1\n";

/// Returns the CRC-32C (Castagnoli), the checksum of all these files.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Flaw> {
        let (front, rest) = self.0.split_at_checked(len).ok_or_else(|| Flaw::new("it ends too early"))?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, Flaw> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Flaw> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Flaw> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Returns a number twice, the second copy inverted. These 16 bytes are written in one call and need no checksum.
pub(super) fn twice(value: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes[8..].copy_from_slice(&(!value).to_le_bytes());
    bytes
}

/// Returns the number encoded by [`twice`], or `None` if the copies differ.
pub(super) fn once(bytes: [u8; 16]) -> Option<u64> {
    let (value, inverse) = (Reader(&bytes).u64().ok()?, Reader(&bytes[8..]).u64().ok()?);
    (value == !inverse).then_some(value)
}
