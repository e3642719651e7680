//! The address of a server, read once into a host and a port. The same value is compared with allow-lists and dialled.

mod allow;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod oracle;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

pub use allow::{AllowList, AllowListError};
pub(crate) use allow::{allowed, may_dial};

/// The host and port of a server. The same value is compared with allow-lists and dialled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The TCP port, 1 to 65535.
    pub port: u16,
}

/// The host of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name in lower case: letters, digits, `-` and `_`, labels of 1 to 63 bytes, 253 bytes in all, without a
    /// trailing dot.
    Name(Box<str>),
    /// An IPv4 address in dotted decimal, or one that was written as an IPv4-mapped IPv6 address (`::ffff:1.2.3.4`).
    V4(Ipv4Addr),
    /// An IPv6 address, written in brackets.
    V6(Ipv6Addr),
}

/// A reason why a text is not a target.
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
    /// Parses `HOST:PORT`. A scheme, user, path, query, escape or white space is an error.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let (host, port) = split_port(text);
        Ok(Self { host: Host::parse(host)?, port: port.ok_or(TargetError::NoPort).and_then(parse_port)? })
    }
}

/// Splits the port off at the last colon, unless that colon is part of an address in brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn parse_port(text: &str) -> Result<u16, TargetError> {
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|_| digits && !text.starts_with('0'));
    port.ok_or(TargetError::Port)
}

impl Host {
    fn parse(text: &str) -> Result<Self, TargetError> {
        match Self::parse_address(text) {
            Some(address) => Ok(address.into()),
            None if Self::is_name(text) => Ok(Self::Name(text.to_ascii_lowercase().into())),
            None => Err(TargetError::Host),
        }
    }

    fn parse_address(text: &str) -> Option<IpAddr> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
            return Some(address.to_canonical());
        }
        text.parse().ok().map(IpAddr::V4)
    }

    /// Parses a host as servers write their own: an IPv6 address needs no brackets.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text.parse::<Ipv6Addr>() {
            Ok(address) => Some(address.to_canonical().into()),
            Err(_) => Self::parse(text).ok(),
        }
    }

    /// Returns whether a text is an address or a name that [`Target::parse`] accepts.
    pub(crate) fn is_well_formed(text: &str) -> bool {
        Self::is_name(text) || Self::parse_address(text).is_some()
    }

    /// Returns whether a text is a name that no resolver reads as an address.
    pub(crate) fn is_name(text: &str) -> bool {
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        // Resolvers read a name whose last label is a number, in decimal, octal or hexadecimal, as an unusually spelt
        // IPv4 address.
        let last = text.rsplit('.').next().unwrap_or_default();
        let hex = last.strip_prefix("0x").or(last.strip_prefix("0X"));
        let number = last.bytes().all(|byte| byte.is_ascii_digit())
            || hex.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        text.len() <= 253 && !number && text.split('.').all(label)
    }

    /// Returns the address, or `None` for a name.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::V4(address) => Some((*address).into()),
            Self::V6(address) => Some((*address).into()),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(address),
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

/// The URL of a server: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    /// True if the connection uses TLS.
    pub tls: bool,
    /// The host and port.
    pub target: Target,
}

/// A reason why a text is not a server's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ServerUrlError {
    /// The text has no scheme, or another one.
    #[error("it does not begin with http:// or https://")]
    Scheme,
    /// The text after the scheme is not a host and port.
    #[error("after its scheme, {0}")]
    Target(#[from] TargetError),
}

impl ServerUrl {
    /// Parses `http://HOST[:PORT]` or `https://HOST[:PORT]`, with an optional `/` at its end. The default port is 80 or
    /// 443.
    ///
    /// # Errors
    /// [`ServerUrlError`].
    pub fn parse(text: &str) -> Result<Self, ServerUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(ServerUrlError::Scheme)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(ServerUrlError::Scheme),
        };
        let (host, port) = split_port(rest.strip_suffix('/').unwrap_or(rest));
        let target =
            Target { host: Host::parse(host)?, port: port.map_or(Ok(if tls { 443 } else { 80 }), parse_port)? };
        Ok(Self { tls, target })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.target)
    }
}

/// Reads the lines of a header that names prefill servers. A single line may be a comma-separated list; each of several
/// lines is one server. `draw` gets the number of servers and returns the index of the one to use.
///
/// Returns `None` if there are no lines, or if the drawn entry is blank.
///
/// # Errors
/// [`TargetError`] about the drawn entry.
pub(crate) fn named<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    draw: impl FnOnce(usize) -> usize,
) -> Result<Option<Target>, TargetError> {
    let mut values = lines.collect::<Vec<_>>();
    if let [list] = values[..] {
        values = list.split(|byte| *byte == b',').collect();
    }
    if values.is_empty() {
        return Ok(None);
    }
    let drawn = values.get(draw(values.len())).copied().unwrap_or_default();
    let text = std::str::from_utf8(drawn).map_err(|_| TargetError::Host)?;
    let text = text.trim_matches([' ', '\t']);
    if text.is_empty() {
        return Ok(None);
    }
    Target::parse(text.strip_prefix("http://").unwrap_or(text)).map(Some)
}
