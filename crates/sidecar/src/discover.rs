//! Discovers servers in a file, in DNS or at an etcd.
//!
//! The servers found last stay in use while nothing is found, however long a file is broken or an etcd unreachable:
//! probes detect servers that have gone.

mod dns;
mod file;
mod found;
mod keys;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use thiserror::Error;

use self::found::Found;
use crate::Role;
use crate::etcd::{Client, Cluster, ClusterError};
use crate::servers::Servers;
use crate::target::{Target, TargetError};
use crate::tls::{TlsError, UpstreamTls};

const MOST_NAMES: usize = 16;

/// A source of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, `{"prefill": ["http://HOST:PORT"], "decode": […]}`, which is reread when it changes.
    File(PathBuf),
    /// DNS names whose addresses are servers of a role, all at the name's port, over plain HTTP.
    Dns(Vec<(Role, Target)>),
    /// An etcd where servers announce themselves.
    Etcd(Cluster),
}

/// A reason why a text is not a source of servers. The messages never quote the text, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The text has none of the known prefixes.
    #[error(
        "it is none of file:PATH, dns:NAME:PORT, dns:prefill=NAME:PORT,decode=NAME:PORT and etcd://HOST:PORT/PREFIX"
    )]
    Kind,
    /// The path of the file is missing.
    #[error("after file: there is no path")]
    NoPath,
    /// A DNS name is invalid.
    #[error("name {number} is not [prefill=|decode=]NAME:PORT: {source}")]
    Name {
        /// The name's position, counted from 1.
        number: usize,
        /// The reason.
        source: TargetError,
    },
    /// There are too many names.
    #[error("it has more than {MOST_NAMES} names to look up")]
    Names,
    /// The text does not name an etcd cluster.
    #[error(transparent)]
    Etcd(#[from] ClusterError),
}

impl Source {
    /// Parses `file:PATH`, `dns:[ROLE=]NAME:PORT[,…]` or `etcd://HOST:PORT[,HOST:PORT]/PREFIX`.
    ///
    /// A name without a role stands for decode servers: they can answer alone, and without them no request is answered.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        if text.starts_with("etcd://") || text.starts_with("etcds://") {
            return Ok(Self::Etcd(Cluster::parse(text)?));
        }
        match text.split_once(':') {
            Some(("file", "")) => Err(SourceError::NoPath),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("dns", names)) if names.split(',').count() > MOST_NAMES => Err(SourceError::Names),
            Some(("dns", names)) => {
                let names = names.split(',').enumerate().map(|(at, name)| {
                    let (role, target) = match name.split_once('=') {
                        Some(("prefill", target)) => (Role::Prefill, target),
                        Some(("decode", target)) => (Role::Decode, target),
                        _ => (Role::Decode, name),
                    };
                    let number = at + 1;
                    match Target::parse(target) {
                        Ok(target) => Ok((role, target)),
                        Err(source) => Err(SourceError::Name { number, source }),
                    }
                });
                Ok(Self::Dns(names.collect::<Result<_, _>>()?))
            }
            _ => Err(SourceError::Kind),
        }
    }
}

/// Updates the table of servers from a source until the future is dropped. Must be called within a tokio runtime.
///
/// A file is read for the first time before this returns. For an etcd only the authorities and the client certificate
/// of `tls` are used.
///
/// # Errors
/// [`TlsError`] if the certificates for an etcd cannot be used. Other faults are logged and retried.
pub fn follow(
    source: Source,
    servers: Arc<Servers>,
    tls: &UpstreamTls,
) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>, TlsError> {
    let found = Found::new(servers);
    Ok(match source {
        Source::File(path) => Box::pin(file::Watched::read_first(path, found).follow()),
        Source::Dns(names) => Box::pin(dns::follow(names, found, dns::system)),
        Source::Etcd(cluster) => Box::pin(keys::follow(Client::new(cluster, tls)?, found)),
    })
}

#[cfg(test)]
mod tests;
