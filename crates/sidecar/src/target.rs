//! Where a server listens: read once into a host and a port, which is what is both compared and dialled.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// Where a server listens: the one thing that is compared with allow-lists and dialled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The TCP port, 1 to 65535.
    pub port: u16,
}

/// A host, as it may be written in a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name of letters, digits, `-` and `_` in labels of 1 to 63, 253 in all.
    Name(Box<str>),
    /// An address in dotted decimal.
    V4(Ipv4Addr),
    /// An address, in brackets.
    V6(Ipv6Addr),
}

/// Why a text is no target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// There is no `:PORT`.
    #[error("it has no port; give HOST:PORT")]
    NoPort,
    /// The port is not a decimal number from 1 to 65535.
    #[error("its port is not a number from 1 to 65535")]
    Port,
    /// The host is neither a name nor an address.
    #[error("its host is neither a name, a dotted IPv4 address nor an IPv6 address in brackets")]
    Host,
}

impl Target {
    /// Reads `HOST:PORT`. Nothing else is taken: no scheme, user, path, query, escape or white space.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text.rsplit_once(':').ok_or(TargetError::NoPort)?;
        if port.is_empty() || port.len() > 5 || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(TargetError::Port);
        }
        let port = port.parse().ok().filter(|port| *port != 0);
        Ok(Self {
            host: Host::parse(host)?,
            port: port.ok_or(TargetError::Port)?,
        })
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, TargetError> {
        match Self::parse_address(text) {
            Some(IpAddr::V4(address)) => Ok(Self::V4(address)),
            Some(IpAddr::V6(address)) => Ok(Self::V6(address)),
            None if Self::is_name(text) => Ok(Self::Name(text.into())),
            None => Err(TargetError::Host),
        }
    }

    fn parse_address(text: &str) -> Option<IpAddr> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']')?.parse().ok()?;
            return Some(IpAddr::V6(address));
        }
        text.parse().ok().map(IpAddr::V4)
    }

    /// Tells whether a text is an address or a name, as [`Target::parse`] takes them.
    pub(crate) fn is_well_formed(text: &str) -> bool {
        Self::is_name(text) || Self::parse_address(text).is_some()
    }

    /// Tells whether a text is a name that no resolver reads as an address.
    pub(crate) fn is_name(text: &str) -> bool {
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        // Resolvers read a name whose last label is a number, in decimal, octal or hexadecimal, as an IPv4 address of an
        // odd spelling.
        let last = text.rsplit('.').next().unwrap_or_default();
        let hex = last.strip_prefix("0x").or(last.strip_prefix("0X"));
        let number = last.bytes().all(|byte| byte.is_ascii_digit())
            || hex.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        text.len() <= 253 && !number && text.split('.').all(label)
    }

    /// The address, where it is one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::V4(address) => Some((*address).into()),
            Self::V6(address) => Some((*address).into()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How a server is spoken to, and where: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    /// Whether the connection is TLS.
    pub tls: bool,
    /// Where it listens.
    pub target: Target,
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.target)
    }
}

/// The targets that an operator allows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowList {}

impl AllowList {
    pub(crate) fn allows_host(&self, _: &str) -> bool {
        false
    }
}

/// The prefill server that header lines name.
///
/// # Errors
/// [`TargetError`].
pub fn named<'a>(
    mut lines: impl Iterator<Item = &'a [u8]>,
    _: impl FnOnce(usize) -> usize,
) -> Result<Option<Target>, TargetError> {
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let text = std::str::from_utf8(line).map_err(|_| TargetError::Host)?;
    let text = text.split(',').next().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(None);
    }
    Target::parse(text.strip_prefix("http://").unwrap_or(text)).map(Some)
}
/// Whether a target may be dialled.
#[must_use]
pub fn allowed(_: Option<&AllowList>, _: &Target) -> bool {
    true
}
