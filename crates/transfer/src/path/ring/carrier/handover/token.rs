//! The token that binds a local connection to an authenticated session.

use std::fmt;
use std::io;

/// 32 random bytes that both agents know from their mutually authenticated control connection. One
/// connection is made with it, and then it is spent.
///
/// It is never sent over the Unix socket: each side sends a keyed hash that only a holder can make,
/// so that whoever listens on the name in the peer's place learns nothing.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// A new one.
    pub fn random() -> io::Result<Self> {
        Ok(Self(crate::path::ring::carrier::random()?))
    }

    /// The one whose bytes came over the control connection.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be sent over the control connection and nowhere else.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What the connecting side sends first.
    pub(super) fn hello(&self) -> Proof {
        Proof(*blake3::keyed_hash(&self.0, b"transload local hello").as_bytes())
    }

    /// What the listening side answers.
    pub(super) fn welcome(&self) -> Proof {
        Proof(*blake3::keyed_hash(&self.0, b"transload local welcome").as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What shows that a side holds the token.
pub(super) struct Proof(pub(super) [u8; 32]);

impl Proof {
    /// Compares in constant time.
    pub(super) fn matches(&self, other: &[u8; 32]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, other).is_ok()
    }
}
