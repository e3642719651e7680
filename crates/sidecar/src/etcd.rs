//! A client of etcd, where servers announce themselves. It uses etcd's JSON gateway, so that no build needs protoc.
//!
//! A server's key is `PREFIX/prefill/NAME` or `PREFIX/decode/NAME`, its value `{"url": "http://HOST:PORT"}`. The key
//! belongs to a lease that the server's announcer renews, so it disappears with the announcer.

mod answers;
mod client;

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::Role;
use crate::target::{ServerUrl, Target, TargetError};

#[cfg(test)]
pub(crate) use self::answers::ChangeEvent;
pub(crate) use self::answers::{Change, Pair, WatchAnswer};
pub(crate) use self::client::{Client, EtcdError};

/// The time that an announcement outlives its announcer.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

const PORT: u16 = 2379;

/// The most endpoints: clusters have three to seven members.
const MOST_ENDPOINTS: usize = 16;

/// The most bytes of a prefix, and of a server's name.
const LONGEST: usize = 256;

/// An etcd cluster, and the prefix of the keys that announce servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    endpoints: Vec<ServerUrl>,
    prefix: String,
}

/// A reason why a text does not name an etcd cluster. The messages never quote the text, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The scheme is missing, or is neither `etcd` nor `etcds`.
    #[error("it does not begin with etcd:// or etcds://")]
    Scheme,
    /// The prefix is missing, or contains characters that are not allowed.
    #[error("after its endpoints it has no /PREFIX of up to {LONGEST} letters, digits and any of - _ . : /")]
    Prefix,
    /// An endpoint is not a host with an optional port.
    #[error("endpoint {number} is not HOST[:PORT]: {source}")]
    Endpoint {
        /// The endpoint's position, counted from 1.
        number: usize,
        /// The reason.
        source: TargetError,
    },
    /// There are too many endpoints.
    #[error("it names more than {MOST_ENDPOINTS} endpoints")]
    Endpoints,
}

impl Cluster {
    /// Parses `etcd://HOST[:PORT][,HOST[:PORT]…]/PREFIX`, or `etcds://…` for TLS.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let (scheme, rest) = text.split_once("://").ok_or(ClusterError::Scheme)?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(ClusterError::Scheme),
        };
        let (endpoints, prefix) = rest.split_once('/').ok_or(ClusterError::Prefix)?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !is_name(prefix, b"/") {
            return Err(ClusterError::Prefix);
        }
        if endpoints.split(',').count() > MOST_ENDPOINTS {
            return Err(ClusterError::Endpoints);
        }
        let endpoints = endpoints.split(',').enumerate().map(|(at, endpoint)| {
            let target = match Target::parse(endpoint) {
                Err(TargetError::NoPort) => Target::parse(&format!("{endpoint}:{PORT}")),
                parsed => parsed,
            };
            let wrong = |source| ClusterError::Endpoint { number: at + 1, source };
            target.map(|target| ServerUrl { tls, target }).map_err(wrong)
        });
        Ok(Self { endpoints: endpoints.collect::<Result<_, _>>()?, prefix: prefix.to_owned() })
    }

    pub(crate) const fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) fn key(&self, role: Role, name: &str) -> String {
        format!("{}/{}/{name}", self.prefix, role.name())
    }

    pub(crate) fn role(&self, key: &[u8]) -> Option<Role> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/")?;
        [Role::Prefill, Role::Decode].into_iter().find(|role| {
            let name = rest.strip_prefix(role.name().as_bytes());
            name.is_some_and(|name| name.len() > 1 && name.starts_with(b"/"))
        })
    }
}

/// Returns whether a text may be part of a key. Its characters are safe to log.
pub(crate) fn is_name(text: &str, also: &[u8]) -> bool {
    (1..=LONGEST).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte) || also.contains(&byte))
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.endpoints.iter().any(|endpoint| endpoint.tls);
        f.write_str(if tls { "etcds://" } else { "etcd://" })?;
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{}", endpoint.target)?;
        }
        write!(f, "/{}", self.prefix)
    }
}

#[cfg(test)]
mod tests;
