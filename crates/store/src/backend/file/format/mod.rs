//! The files of a store, byte by byte: what `docs/src/reference/file-store.md` says, as functions.
//!
//! All numbers are little-endian. Every part that is read has a checksum of its own, so that no length or
//! offset is used before it is known to be the one that was written.

pub(crate) mod manifest;
pub(crate) mod pack;

/// What is wrong with bytes that should be a file of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Flaw(pub(super) String);

impl Flaw {
    fn new(how: impl Into<String>) -> Self {
        Self(how.into())
    }
}

/// The content of the marker file of a root.
pub(crate) const MARKER: &[u8] = b"kv_store file, version 1\n";

/// CRC-32C (Castagnoli), the checksum of everything here.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Reads numbers and bytes off the front of a slice.
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

/// Two copies of a number that change together, the second one inverted: 16 bytes that are written in one
/// call and need no checksum.
pub(super) fn twice(value: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes[8..].copy_from_slice(&(!value).to_le_bytes());
    bytes
}

/// The number in [`twice`], or `None`.
pub(super) fn once(bytes: [u8; 16]) -> Option<u64> {
    let (value, inverse) = (Reader(&bytes).u64().ok()?, Reader(&bytes[8..]).u64().ok()?);
    (value == !inverse).then_some(value)
}
