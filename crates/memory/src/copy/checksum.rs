//! CRC-32C of moved bytes.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

/// A running CRC-32C (the Castagnoli polynomial, as in iSCSI, RFC 3720 section 12.1) and the number
/// of bytes it covers.
///
/// ```
/// use transload_memory::copy::Crc32c;
///
/// let mut sum = Crc32c::of(b"1234");
/// sum.append(&Crc32c::of(b"56789"));
/// assert_eq!((sum.value(), sum.bytes()), (0xe306_9283, 9));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Crc32c {
    value: u32,
    bytes: u64,
}

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

impl Crc32c {
    /// Returns the sum of no bytes.
    pub const fn new() -> Self {
        Self { value: 0, bytes: 0 }
    }

    /// Computes the sum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::new();
        sum.update(bytes);
        sum
    }

    /// Adds bytes at the end.
    pub fn update(&mut self, bytes: &[u8]) {
        self.pass(bytes.len() as u64, |state| add(state, bytes));
    }

    /// Adds the bytes of another sum at the end. It takes one or two microseconds for any number of bytes.
    pub fn append(&mut self, next: &Self) {
        // Nothing to combine: the library does not define that case.
        if next.bytes > 0 {
            let (first, second) = (u64::from(self.value), u64::from(next.value));
            self.value = checksum_combine(ALGORITHM, first, second, next.bytes) as u32;
            self.bytes += next.bytes;
        }
    }

    /// Returns the checksum.
    pub const fn value(&self) -> u32 {
        self.value
    }

    /// Returns the number of bytes that it covers.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Flips bits of the checksum. Sums are linear, so the sum of the xor of two texts of one length follows from both
    /// sums.
    #[doc(hidden)]
    pub fn flip(&mut self, bits: u32) {
        self.value ^= bits;
    }

    /// Adds bytes with a kernel, which maps the old state to the new one.
    pub(crate) fn pass(&mut self, bytes: u64, kernel: impl FnOnce(u32) -> u32) {
        self.value = !kernel(!self.value);
        self.bytes += bytes;
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32c({:08x} of {} bytes)", self.value, self.bytes)
    }
}

/// Adds bytes to the state of a sum, which is the inverted sum.
pub(crate) fn add(state: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(ALGORITHM, state.into());
    digest.update(bytes);
    !digest.finalize() as u32
}
