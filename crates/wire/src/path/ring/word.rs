//! The address of an agent for others on its host, and the proof that it requires.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A message of the negotiation: the place where a ring can be fetched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Word {
    /// The socket's name. Only names of this form are ever connected to.
    pub socket: SocketName,
    /// The secret that must be proved there.
    pub token: Token,
}

/// A secret of 32 random bytes for one connection between two agents of a host. It is sent only over their mutually
/// authenticated control connection.
///
/// It is never sent over the Unix socket: each side sends a keyed hash that only a holder of the token can make. So a
/// process that listens on the name in the peer's place learns nothing.
#[derive(Clone, Serialize, Deserialize)]
pub struct Token(pub [u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The name of an agent's Unix socket in the abstract namespace: `transload-` and 32 hexadecimal digits.
///
/// Abstract names belong to a network namespace, leave no file behind and are not secret. The peer's user and a token
/// decide who may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SocketName(String);

impl SocketName {
    /// Makes the name with these digits.
    pub fn of(digits: u128) -> Self {
        Self(format!("{PREFIX}{digits:032x}"))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const PREFIX: &str = "transload-";

/// The text is not a valid socket name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a socket is named {PREFIX} and 32 lower-case hexadecimal digits")]
pub struct SocketNameError;

impl TryFrom<String> for SocketName {
    type Error = SocketNameError;

    fn try_from(text: String) -> Result<Self, SocketNameError> {
        let digits = text.strip_prefix(PREFIX).ok_or(SocketNameError)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        match digits.len() == 32 && digits.bytes().all(hex) {
            true => Ok(Self(text)),
            false => Err(SocketNameError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_peers_are_checked() {
        let name = SocketName::of(7);
        assert_eq!(SocketName::try_from(name.as_str().to_owned()), Ok(name));
        for bad in ["", "transload-", "transload-0", "/tmp/socket", "x11-0123456789"] {
            assert_eq!(SocketName::try_from(bad.to_owned()), Err(SocketNameError));
        }
        let upper = format!("transload-{}", "A".repeat(32));
        assert_eq!(SocketName::try_from(upper), Err(SocketNameError));
    }
}
