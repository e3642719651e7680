//! Packed formats of rows.

/// A packed format: how elements and scales share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packed {
    /// Two elements in a byte, and an fp8 scale for every 16 of them. A block holds all elements of a head
    /// before all their scales, and the keys of all heads before the values.
    Nvfp4,
    /// Elements of a byte, and a float32 scale in each row.
    Int8PerTokenHead,
    /// Elements of a byte in fp8, and a float32 scale in each row.
    Fp8PerTokenHead,
    /// Two elements in a byte, and a float32 scale in each row.
    Int4PerTokenHead,
    /// Keys with elements of this many bits and a float16 norm (8 bits are fp8, without a norm), and values with a
    /// scale and a zero point in float16. The first two and the last two layers are not packed.
    TurboQuant {
        /// Bits of an element of a key.
        key_bits: u64,
        /// Bits of an element of a value.
        value_bits: u64,
    },
    /// Two elements in a byte, and a scale of one byte for every 32 of them. The first two and the last two layers are
    /// not packed.
    UltraQuant,
}
