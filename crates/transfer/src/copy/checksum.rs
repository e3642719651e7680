//! CRC-32C of what moved.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// A running CRC-32C (Castagnoli, as in iSCSI and RFC 3720).
///
/// ```
/// use transload_transfer::copy::Crc32c;
///
/// let mut sum = Crc32c::new();
/// sum.update(b"1234");
/// let mut rest = Crc32c::new();
/// rest.update(b"56789");
/// sum.append(&rest);
/// assert_eq!((sum.value(), sum.bytes()), (0xe306_9283, 9));
/// ```
#[derive(Clone)]
pub struct Crc32c {
    digest: Digest,
}

impl Crc32c {
    /// The sum of no bytes.
    pub fn new() -> Self {
        Self {
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    /// Adds bytes at the end.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// Adds the bytes of another sum at the end; costs about a microsecond whatever their number.
    pub fn append(&mut self, next: &Self) {
        if next.bytes() > 0 {
            self.digest.combine(&next.digest);
        }
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u32 {
        self.digest.finalize() as u32
    }

    /// How many bytes that were.
    pub fn bytes(&self) -> u64 {
        self.digest.get_amount()
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:08x}, {} bytes)", self.value(), self.bytes())
    }
}
