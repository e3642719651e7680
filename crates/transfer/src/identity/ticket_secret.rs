//! The secret that a cluster's tickets are authenticated with.

use std::{fmt, io};

/// 32 random bytes that only the agents of a cluster hold. `Debug` does not show them.
///
/// They are enough to make tickets. Agents need a certificate too, so a leaked secret alone opens no connection.
#[derive(Clone)]
pub struct TicketSecret([u8; Self::BYTES]);

impl TicketSecret {
    /// Its length.
    pub const BYTES: usize = 32;

    /// A new key from the operating system's randomness.
    ///
    /// # Errors
    /// The operating system's, when it has none to give.
    pub fn random() -> io::Result<Self> {
        let mut key = [0; Self::BYTES];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// The key itself.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl From<[u8; Self::BYTES]> for TicketSecret {
    fn from(key: [u8; Self::BYTES]) -> Self {
        Self(key)
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret(..)")
    }
}
