//! Which host this is, and where its agent can be met.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// What an agent says of its host in its hello.
///
/// Two agents with equal boot ids are *probably* on one host: machines that were cloned from one
/// snapshot share a boot id, and containers of one host may not see each other's sockets. What
/// proves it is a [`connect`](super::handover::connect) that succeeds: the socket's name is random
/// and the token was agreed over the authenticated control connection. So compare, try, and fall
/// back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// The kernel's boot id.
    pub boot: BootId,
    /// Where the agent listens.
    pub socket: SocketName,
}

impl HostIdentity {
    /// Whether it is worth trying to connect to `other`.
    pub fn may_share_host_with(&self, other: &Self) -> bool {
        self.boot == other.boot
    }
}

/// The random id that a Linux kernel draws when it boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// The one of this host.
    ///
    /// Source: `/proc/sys/kernel/random/boot_id`, a UUID.
    pub fn read() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Self::parse(text.trim())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the boot id is not a UUID"))
    }

    fn parse(uuid: &str) -> Option<Self> {
        let mut digits = uuid.bytes().filter(|b| *b != b'-');
        let mut id = [0; 16];
        for byte in &mut id {
            let high = char::from(digits.next()?).to_digit(16)?;
            let low = char::from(digits.next()?).to_digit(16)?;
            *byte = u8::try_from(high << 4 | low).ok()?;
        }
        digits.next().is_none().then_some(Self(id))
    }
}

/// The name of an agent's abstract Unix socket: `transload-` and 32 hexadecimal digits.
///
/// Abstract names belong to a network namespace, leave no file behind and are no secret; who may
/// connect is decided by the peer's user and by a token.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketName(String);

impl SocketName {
    /// A name that nobody has.
    pub fn random() -> io::Result<Self> {
        let digits = format!("{:032x}", u128::from_be_bytes(super::random()?));
        Ok(Self(format!("{PREFIX}{digits}")))
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

impl From<SocketName> for String {
    fn from(name: SocketName) -> Self {
        name.0
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
    fn this_host_is_itself() {
        let identity = || HostIdentity {
            boot: BootId::read().unwrap(),
            socket: SocketName::random().unwrap(),
        };
        let (a, b) = (identity(), identity());
        assert!(a.may_share_host_with(&b));
        assert_ne!(a.socket, b.socket);
    }

    #[test]
    fn names_from_peers_are_checked() {
        let name = SocketName::random().unwrap();
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

    #[test]
    fn boot_ids_are_uuids() {
        let id = BootId::parse("00010203-0405-0607-0809-0a0b0c0d0eff").unwrap();
        assert_eq!(id.0[..4], [0, 1, 2, 3]);
        assert_eq!(id.0[15], 0xff);
        assert_eq!(BootId::parse("0001"), None);
        assert_eq!(
            BootId::parse("00010203-0405-0607-0809-0a0b0c0d0eff00"),
            None
        );
    }
}
