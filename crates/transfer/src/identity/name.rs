//! Names of clusters, services and instances, and the URI with the first two in a certificate.

use std::{
    fmt, io,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use thiserror::Error;

use transload_plan::ids::{ClusterName, Incarnation, InstanceName, NameError, ServiceName};
use transload_wire::{Roles, UnknownRole};

pub(super) const SCHEME: &str = "transload://";

/// The longest accepted identity URI in bytes. Both names and all roles fit into half of it.
pub(super) const MAX_URI_BYTES: usize = 512;

/// Makes a random name for a cluster, with 80 bits, for operators without a better one.
///
/// # Errors
/// An error of the operating system if it provides no randomness.
pub fn random_cluster_name() -> io::Result<ClusterName> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes[6..])?;
    let name = format!("{:020x}", u128::from_be_bytes(bytes));
    ClusterName::new(name).map_err(io::Error::other)
}

/// Makes an instance name of the host's name, which on Kubernetes is the pod's, and a port; see [`InstanceName::at`].
pub fn default_instance(port: u16) -> InstanceName {
    let host = rustix::system::uname();
    InstanceName::at(&host.nodename().to_string_lossy(), port)
}

/// Makes an incarnation that starts now, to be shared by all agents of an engine instance.
///
/// # Errors
/// An error of the operating system if it provides no randomness.
pub fn new_incarnation() -> io::Result<Incarnation> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
    let started = started.map_or(0, |since| since.as_millis() as u64);
    Ok(Incarnation::new(started, u64::from_le_bytes(random)))
}

/// The identity in a certificate.
///
/// Its text is the URI in the certificate, exactly `transload://<cluster>/agent/<service>?roles=<role>,<role>`, with
/// the roles in the order of [`Role`](crate::Role), each once. So every identity has only one text, with one exception:
/// the roles may end with `map`, which older certificates contain and which allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// The cluster, i.e. the authority that vouches for the service.
    pub cluster: ClusterName,
    /// The service. Several instances can share a certificate, so the instance is not proven by it; peers state it
    /// themselves.
    pub service: ServiceName,
    /// The permissions of its agents.
    pub roles: Roles,
}

/// The reason why a URI is not that of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum PeerUriError {
    /// It is longer than any identity can be.
    #[error("the URI is {actual} bytes long; {limit} are allowed")]
    TooLong { limit: usize, actual: usize },
    /// It does not have the form of an identity.
    #[error("the URI has not the form transload://CLUSTER/agent/SERVICE?roles=ROLES")]
    Form,
    /// A name in it is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A role in it does not exist.
    #[error(transparent)]
    Role(#[from] UnknownRole),
    /// Roles are repeated or in another order, so that one identity would have several texts.
    #[error("the roles are not written in their one order, each once: {expected:?} is right")]
    RoleOrder { expected: String },
}

impl FromStr for PeerIdentity {
    type Err = PeerUriError;

    fn from_str(uri: &str) -> Result<Self, PeerUriError> {
        let rest = check_scheme(uri)?;
        let (cluster, rest) = rest.split_once("/agent/").ok_or(PeerUriError::Form)?;
        let (service, roles) = rest.split_once("?roles=").ok_or(PeerUriError::Form)?;
        let roles = without_map(roles);
        let identity = Self { cluster: cluster.parse()?, service: service.parse()?, roles: roles.parse()? };
        let expected = identity.roles.to_string();
        if roles != expected {
            return Err(PeerUriError::RoleOrder { expected });
        }
        Ok(identity)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, service, roles } = self;
        write!(f, "{SCHEME}{cluster}/agent/{service}?roles={roles}")
    }
}

/// Removes `map`, the last role, which once allowed an agent to map others' memory.
fn without_map(roles: &str) -> &str {
    match roles.strip_suffix("map") {
        Some("") => "",
        Some(others) => others.strip_suffix(',').unwrap_or(roles),
        None => roles,
    }
}

/// Returns the URI in an authority's certificate, which names its cluster.
pub(super) fn authority_uri(cluster: &ClusterName) -> String {
    format!("{SCHEME}{cluster}/authority")
}

pub(super) fn parse_authority_uri(uri: &str) -> Result<ClusterName, PeerUriError> {
    let cluster = check_scheme(uri)?.strip_suffix("/authority").ok_or(PeerUriError::Form)?;
    Ok(cluster.parse()?)
}

fn check_scheme(uri: &str) -> Result<&str, PeerUriError> {
    if uri.len() > MAX_URI_BYTES {
        return Err(PeerUriError::TooLong { limit: MAX_URI_BYTES, actual: uri.len() });
    }
    uri.strip_prefix(SCHEME).ok_or(PeerUriError::Form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name() {
        let of_host = default_instance(7600);
        assert_eq!(InstanceName::new(of_host.as_str()), Ok(of_host));
    }
}
