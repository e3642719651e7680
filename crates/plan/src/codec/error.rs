//! Errors of decoding.

/// Describes why bytes are not a result of [`Codec::encode`](super::Codec::encode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undecodable {
    /// There are too few or too many bytes.
    #[error("{given} bytes were given where {needed} belong")]
    Length {
        /// The expected number of bytes.
        needed: usize,
        /// The number of bytes found.
        given: usize,
    },
    /// A group has an invalid scale or minimum.
    #[error("a group has the scale {scale:#06x} and the minimum {minimum:#06x}, which no group has")]
    Group {
        /// The scale, as an f16.
        scale: u16,
        /// The minimum, as an f16.
        minimum: u16,
    },
    /// A group is marked as stored exactly, and its values are missing.
    #[error("a group is marked as stored exactly, and its values are missing")]
    Exact,
}
