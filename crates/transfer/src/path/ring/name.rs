//! Where an agent can be met by others of its host.

use std::fmt;

/// The name of an agent's abstract Unix socket: `transload-` and 32 hexadecimal digits.
///
/// Abstract names belong to a network namespace, leave no file behind and are no secret; who may
/// connect is decided by the peer's user and by a token.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SocketName(String);

impl SocketName {
    /// The name with these digits.
    pub fn of(digits: u128) -> Self {
        Self(format!("{PREFIX}{digits:032x}"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const PREFIX: &str = "transload-";

/// A text that is no name of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a socket is named {PREFIX} and 32 lower-case hexadecimal digits")]
pub struct SocketNameError;

impl TryFrom<String> for SocketName {
    type Error = SocketNameError;

    fn try_from(text: String) -> Result<Self, SocketNameError> {
        let digits = text.strip_prefix(PREFIX).ok_or(SocketNameError)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if digits.len() == 32 && digits.bytes().all(hex) {
            Ok(Self(text))
        } else {
            Err(SocketNameError)
        }
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_peers_are_checked() {
        let name = SocketName::of(7);
        assert_eq!(SocketName::try_from(name.to_string()), Ok(name));
        for bad in [
            "",
            "transload-",
            "transload-0",
            "/tmp/socket",
            "x11-0123456789",
        ] {
            assert_eq!(SocketName::try_from(bad.to_owned()), Err(SocketNameError));
        }
        let upper = format!("transload-{}", "A".repeat(32));
        assert_eq!(SocketName::try_from(upper), Err(SocketNameError));
    }
}
