//! Why values cannot be decoded.

/// Why bytes are not what [`Codec::encode`](super::Codec::encode) made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undecodable {
    /// They are too few, or too many.
    #[error("{given} bytes were given where {needed} belong")]
    Length {
        /// How many there have to be.
        needed: usize,
        /// How many there are.
        given: usize,
    },
    /// A scale or minimum that no group has.
    #[error("a group has the scale {scale:#06x} and the minimum {minimum:#06x}, which no group has")]
    Group {
        /// An f16.
        scale: u16,
        /// An f16.
        minimum: u16,
    },
    /// A group is said to be stored exactly, and is not there.
    #[error("a group is marked as stored exactly, and its values are missing")]
    Exact,
}
