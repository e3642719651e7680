//! Where servers come from besides the command line: a file, DNS or etcd.
//!
//! What was found last stays for as long as nothing is found, however long a file is broken or an etcd away: servers that have
//! gone are known by their probes.

mod dns;
mod file;
mod keys;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use thiserror::Error;

use crate::Role;
use crate::etcd::{Client, Cluster, ClusterError};
use crate::servers::{Origin, Servers};
use crate::settings::UpstreamTls;
use crate::target::{ServerUrl, Target, TargetError};
use crate::tls::TlsError;

/// The most servers of a role that one source gives. Further ones are left out, and that is logged.
const MOST_SERVERS: usize = 1024;

/// The most names that are looked up.
const MOST_NAMES: usize = 16;

/// Where servers are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, `{"prefill": ["http://HOST:PORT"], "decode": […]}`, which is read again when it changes.
    File(PathBuf),
    /// Names whose addresses are servers of a role, all at the port beside it, over plain HTTP.
    Dns(Vec<(Role, Target)>),
    /// An etcd at which servers announce themselves.
    Etcd(Cluster),
}

/// Why a text is no source of servers. Says nothing of the text itself, which may have a password in it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It begins as none of them does.
    #[error(
        "it is none of file:PATH, dns:NAME:PORT, dns:prefill=NAME:PORT,decode=NAME:PORT and etcd://HOST:PORT/PREFIX"
    )]
    Kind,
    /// It names no file.
    #[error("after file: there is no path")]
    NoPath,
    /// One of the names to look up is none.
    #[error("name {number} is not [prefill=|decode=]NAME:PORT: {source}")]
    Name {
        /// Which one, from 1 on.
        number: usize,
        /// What is wrong with it.
        source: TargetError,
    },
    /// There are too many of them.
    #[error("it has more than {MOST_NAMES} names to look up")]
    Names,
    /// It names no etcd.
    #[error(transparent)]
    Etcd(#[from] ClusterError),
}

impl Source {
    /// Reads `file:PATH`, `dns:[ROLE=]NAME:PORT[,…]` or `etcd://HOST:PORT[,HOST:PORT]/PREFIX`.
    ///
    /// A name without a role is one of decode servers: no request is answered without them, and every request without others.
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

/// Keeps the table of servers as a source says, until the future is dropped. To be called within a tokio runtime.
///
/// A file is read before this returns. Of `tls` an etcd is spoken to with the authorities and the client's certificate.
///
/// # Errors
/// [`TlsError`], where certificates for an etcd cannot be used. All else heals, and is logged until then.
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

/// The servers that a source has found, as the table was told of them.
#[derive(Debug)]
struct Found {
    servers: Arc<Servers>,
    told: [Vec<ServerUrl>; 2],
}

impl Found {
    fn new(servers: Arc<Servers>) -> Self {
        Self { servers, told: [Vec::new(), Vec::new()] }
    }

    /// Tells the table, if this is news.
    fn tell(&mut self, prefill: Vec<ServerUrl>, decode: Vec<ServerUrl>) {
        let now = [(Role::Prefill, prefill), (Role::Decode, decode)];
        for ((role, mut urls), told) in now.into_iter().zip(&mut self.told) {
            if urls.len() > MOST_SERVERS {
                let (role, left_out) = (role.name(), urls.len() - MOST_SERVERS);
                tracing::warn!(role, left_out, "more servers are found than are used");
                urls.truncate(MOST_SERVERS);
            }
            if urls != *told {
                let (role_name, servers) = (role.name(), urls.len());
                tracing::info!(role = role_name, servers, "other servers are found");
                self.servers.set(Origin::Discovery, role, &urls);
                *told = urls;
            }
        }
    }
}

#[cfg(test)]
mod tests;
