//! etcd, where servers announce themselves, spoken to over its JSON gateway: no build needs protoc.
//!
//! A server's key is `PREFIX/prefill/NAME` or `PREFIX/decode/NAME`, its value `{"url": "http://HOST:PORT"}`. The key hangs on a
//! lease that the server's announcer keeps alive, so that it goes when the announcer does.

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

/// How long an announcement outlives its announcer.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// The port of etcd, where none is given.
const PORT: u16 = 2379;

/// The most endpoints: clusters have three to seven members.
const MOST_ENDPOINTS: usize = 16;

/// The bytes of a prefix, and of a server's name.
const LONGEST: usize = 256;

/// An etcd, and the prefix of the keys there that are about servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    endpoints: Vec<ServerUrl>,
    prefix: String,
}

/// Why a text names no etcd. Says nothing of the text itself, which may have a password in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// It has another scheme, or none.
    #[error("it does not begin with etcd:// or etcds://")]
    Scheme,
    /// There is no prefix, or one that would be another key than it seems.
    #[error("after its endpoints it has no /PREFIX of up to {LONGEST} letters, digits and any of - _ . : /")]
    Prefix,
    /// One of the endpoints is none.
    #[error("endpoint {number} is not HOST[:PORT]: {source}")]
    Endpoint {
        /// Which one, from 1 on.
        number: usize,
        /// What is wrong with it.
        source: TargetError,
    },
    /// There are too many of them.
    #[error("it names more than {MOST_ENDPOINTS} endpoints")]
    Endpoints,
}

impl Cluster {
    /// Reads `etcd://HOST[:PORT][,HOST[:PORT]…]/PREFIX`, or the same with `etcds` for TLS.
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

    /// How many members can be asked.
    pub(crate) const fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// The key of a server.
    pub(crate) fn key(&self, role: Role, name: &str) -> String {
        format!("{}/{}/{name}", self.prefix, role.name())
    }

    /// The role of the server that a key is about.
    pub(crate) fn role(&self, key: &[u8]) -> Option<Role> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/")?;
        [Role::Prefill, Role::Decode].into_iter().find(|role| {
            let name = rest.strip_prefix(role.name().as_bytes());
            name.is_some_and(|name| name.len() > 1 && name.starts_with(b"/"))
        })
    }
}

/// Tells whether a text may be a part of a key: it is what it seems to be in a log, too.
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
