//! The secret that authenticates a cluster's tickets.

use std::{fmt, io};

/// 32 random bytes that only the agents of a cluster know. `Debug` does not show them.
///
/// They are enough to make tickets. But agents also need a certificate, so a leaked secret alone opens no connection.
#[derive(Clone)]
pub struct TicketSecret([u8; Self::BYTES]);

impl TicketSecret {
    /// The length in bytes.
    pub const BYTES: usize = 32;

    /// Makes a random secret.
    ///
    /// # Errors
    /// An error of the operating system if it provides no randomness.
    pub fn random() -> io::Result<Self> {
        let mut key = [0; Self::BYTES];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Returns the secret bytes.
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
