//! The identifiers of agents, deployments, lease sets and transfers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use transload_layout::Deployment;
pub use transload_layout::Rank;

/// The longest name of a cluster, a service or an instance, in bytes.
pub const MAX_NAME: usize = 64;

/// Describes why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text is too long.
    #[error("a name has at most {MAX_NAME} bytes, this one has {bytes}")]
    TooLong { bytes: usize },
    /// The text contains a character other than letters, digits, `.`, `_`, `~` and `-`.
    #[error("a name is made of ASCII letters, digits and . _ ~ -, not of {found:?}")]
    Character { found: char },
}

/// Checks that a name has 1 to [`MAX_NAME`] letters, digits, `.`, `_`, `~` and `-`.
fn check_name(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > MAX_NAME {
        return Err(NameError::TooLong { bytes: text.len() });
    }
    match text.chars().find(|&c| !is_name_character(c)) {
        Some(found) => Err(NameError::Character { found }),
        None => Ok(()),
    }
}

fn check_agent(text: &str) -> Result<(), NameError> {
    text.splitn(2, '/').try_for_each(check_name)
}

/// Tells whether a character is unreserved in RFC 3986, because certificates contain names in URIs without escaping.
fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '-')
}

/// Defines a type for a checked text, which is parsed, printed and sent as that text.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "Cow<str>")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and wraps a text: each part of a name has 1 to [`MAX_NAME`] letters, digits, `.`, `_`, `~` and
            /// `-`.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                $check(text.as_ref())?;
                Ok(Self(Arc::from(text.as_ref())))
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl TryFrom<Cow<'_, str>> for $name {
            type Error = NameError;

            fn try_from(text: Cow<'_, str>) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

text! {
    /// The name of a cluster: all agents that share a certificate authority and a ticket key.
    ClusterName, check_name
}

text! {
    /// The name of a service in certificates. A service is all engines that have one certificate.
    ServiceName, check_name
}

text! {
    /// The name of an engine instance within its service. It distinguishes replicas with the same certificate.
    InstanceName, check_name
}

text! {
    /// The name of an agent: `SERVICE/INSTANCE`. It is unique in a cluster if the instances of each service have
    /// different names.
    ///
    /// The agent's certificate proves the service, and the agent itself states the instance. If a service has only one
    /// agent, that agent may have the service's name alone.
    AgentId, check_agent
}

/// The longest part of a host's name that [`InstanceName::at`] keeps, which leaves room for the port and rank.
const MAX_HOST_PART: usize = 52;

impl InstanceName {
    /// Makes a default name for an instance from its host's name and a port, which differs between engines on one host.
    /// So the name stays the same after a restart.
    ///
    /// The end of a long host name is kept, because it distinguishes pods.
    pub fn at(host: &str, port: u16) -> Self {
        let allowed = |c: char| if is_name_character(c) { c } else { '-' };
        let host: String = host.chars().map(allowed).collect();
        let kept = &host[host.len().saturating_sub(MAX_HOST_PART)..];
        Self(format!("{kept}-{port}").into())
    }
}

impl AgentId {
    /// Names an instance of a service.
    pub fn of(service: &ServiceName, instance: &InstanceName) -> Self {
        Self(format!("{service}/{instance}").into())
    }

    /// Returns the service that the agent belongs to.
    pub fn service(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(service, _)| service)
    }

    /// Returns the instance's name, if the agent has one.
    pub fn instance(&self) -> Option<&str> {
        self.0.split_once('/').map(|(_, instance)| instance)
    }

    /// Tells whether `other` is this agent or, if this is only a service's name, an agent of that service.
    pub fn includes(&self, other: &AgentId) -> bool {
        self == other || (self.instance().is_none() && self.service() == other.service())
    }
}

impl From<&AgentId> for ServiceName {
    /// Returns the service of an agent.
    fn from(agent: &AgentId) -> Self {
        Self(agent.service().into())
    }
}

impl From<&ServiceName> for AgentId {
    /// Returns the only agent of a service.
    fn from(service: &ServiceName) -> Self {
        Self(service.0.clone())
    }
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

identifier! {
    /// The id of a request's leases on all ranks of a deployment: 128 random bits.
    LeaseSetId, 16
}

identifier! {
    /// The id of one attempt to move one route. It is never reused.
    TransferId, 16
}

identifier! {
    /// The BLAKE3-256 of a deployment's canonical document.
    DeploymentDigest, 32
}

identifier! {
    /// The BLAKE3-256 of everything in a plan. Block tables are not part of it.
    PlanDigest, 32
}

impl DeploymentDigest {
    /// Returns the digest of a canonical document.
    pub fn of(document: &[u8]) -> Self {
        Self(*blake3::hash(document).as_bytes())
    }

    /// Returns the digest by which agents know a deployment, for code without an agent, such as a scheduler.
    ///
    /// # Errors
    /// Returns an error if the document cannot be encoded, which does not happen for checked documents.
    pub fn of_deployment(deployment: &Deployment) -> Result<Self, postcard::Error> {
        canonical_document(deployment).map(|document| Self::of(&document))
    }
}

/// Encodes a deployment canonically. Agents send these bytes, and its [digest](DeploymentDigest) is computed from them.
///
/// # Errors
/// Returns an error if the document cannot be encoded, which does not happen for checked documents.
pub fn canonical_document(deployment: &Deployment) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_allocvec(deployment.document())
}

/// One life of a deployment. All ranks of an engine instance share it, and a restarted engine has another one.
///
/// Incarnations are ordered by start time. When a peer shows a newer one, everything of the older is dropped at once.
/// If a clock was set back and a new life looks older, that happens when the old connections are found dead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// Combines the wall clock at the start (milliseconds since 1970) and 64 random bits.
    pub fn new(started_ms: u64, random: u64) -> Self {
        Self((u128::from(started_ms) << 64) | u128::from(random))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}

/// A secret that admits a data stream or a lane: 128 unguessable bits for each attempt.
///
/// It travels only on authenticated control connections and at the beginning of what it admits. It is never printed.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Nonce(pub [u8; 16]);

impl PartialEq for Nonce {
    /// Compares in constant time, so that the time does not reveal how much of a guess was right.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl Eq for Nonce {}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// The direction in which bytes move between the owner of a lease set and the holder of its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// The holder reads the owner's blocks.
    Pull,
    /// The holder writes into blocks under the owner's write lease.
    Push,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Pull => "pull",
            Direction::Push => "push",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_wrong_with_them() {
        assert_eq!(AgentId::new("prefill-0.a_b~").unwrap().as_str(), "prefill-0.a_b~");
        assert_eq!(AgentId::new(""), Err(NameError::Empty));
        assert_eq!(AgentId::new("x".repeat(65)), Err(NameError::TooLong { bytes: 65 }));
        assert_eq!(ServiceName::new("a/b"), Err(NameError::Character { found: '/' }));
        assert_eq!(AgentId::new("a/b/c"), Err(NameError::Character { found: '/' }));
        for half in ["a/", "/b", "/"] {
            assert_eq!(AgentId::new(half), Err(NameError::Empty), "{half}");
        }
        assert_eq!(ClusterName::new("ä"), Err(NameError::Character { found: 'ä' }));
    }

    #[test]
    fn agents_are_instances_of_services() {
        let agent = |text: &str| AgentId::new(text).unwrap();
        let one = AgentId::of(&"prefill".parse().unwrap(), &"pod-0-7600".parse().unwrap());
        assert_eq!(one, agent("prefill/pod-0-7600"));
        assert_eq!((one.service(), one.instance()), ("prefill", Some("pod-0-7600")));
        let service = agent("prefill");
        assert_eq!((service.service(), service.instance()), ("prefill", None));
        assert!(service.includes(&one) && one.includes(&one) && service.includes(&service));
        assert!(!one.includes(&service) && !one.includes(&agent("prefill/pod-1-7600")));
        assert!(!service.includes(&agent("prefill-b/pod-0-7600")));
    }

    #[test]
    fn instances_are_called_after_host_and_port() {
        let of = |host: &str, port| InstanceName::at(host, port).to_string();
        assert_eq!(of("prefill-6d9f7c5b8-abcde", 7600), "prefill-6d9f7c5b8-abcde-7600");
        assert_eq!(of("a b/ü", 7600), "a-b---7600");
        let longest = of(&format!("{}-abcde", "x".repeat(250)), 65535);
        assert!(longest.ends_with("x-abcde-65535"), "{longest}");
        // With a rank behind it, it is still a name.
        InstanceName::new(format!("{longest}-1023")).unwrap();
    }

    #[test]
    fn names_are_checked_when_they_arrive() {
        let good = postcard::to_allocvec("a-1").unwrap();
        assert_eq!(postcard::from_bytes::<AgentId>(&good).unwrap().as_str(), "a-1");
        let bad = postcard::to_allocvec("a 1").unwrap();
        assert!(postcard::from_bytes::<AgentId>(&bad).is_err());
    }

    #[test]
    fn incarnations_are_ordered_by_their_start() {
        assert!(Incarnation::new(2, 0) > Incarnation::new(1, u64::MAX));
    }

    #[test]
    fn nonces_compare_and_stay_silent() {
        assert_eq!(Nonce([7; 16]), Nonce([7; 16]));
        assert_ne!(Nonce([7; 16]), Nonce([8; 16]));
        assert_eq!(format!("{:?}", Nonce([7; 16])), "Nonce(..)");
    }
}
