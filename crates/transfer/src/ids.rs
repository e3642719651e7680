//! The names by which agents, deployments, lease sets and transfers are known.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use transload_layout::Deployment;
pub use transload_layout::Rank;

pub use crate::plan::PlanDigest;

/// Longest [`AgentId`] or [`ClusterName`], in bytes.
pub const MAX_NAME: usize = 64;

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("a name must not be empty")]
    Empty,
    /// It is too long.
    #[error("a name has at most {MAX_NAME} bytes, this one has {bytes}")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It holds a character other than letters, digits, `.`, `_`, `~` and `-`.
    #[error("a name is made of ASCII letters, digits and . _ ~ -, not of {found:?}")]
    Character {
        /// The first such character.
        found: char,
    },
}

fn check_name(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > MAX_NAME {
        return Err(NameError::TooLong { bytes: text.len() });
    }
    // The unreserved characters of RFC 3986: a name stands in the URI of a certificate as it is.
    let unreserved = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | '-');
    match text.chars().find(|&c| !unreserved(c)) {
        Some(found) => Err(NameError::Character { found }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and wraps `text`: 1 to [`MAX_NAME`] letters, digits, `.`, `_`, `~` and `-`.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                check_name(text.as_ref())?;
                Ok(Self(Arc::from(text.as_ref())))
            }

            /// The name as text.
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

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::new(&text).map_err(D::Error::custom)
            }
        }
    };
}

name! {
    /// The name of an agent, as its certificate states it. Unique in a cluster.
    AgentId
}

name! {
    /// The name of a cluster: the agents that share a certificate authority and a ticket key.
    ClusterName
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
    /// Names the leases of one request on all ranks of a deployment. Random, 128 bits.
    LeaseSetId, 16
}

identifier! {
    /// Names one attempt to move one route. Never used twice.
    TransferId, 16
}

identifier! {
    /// BLAKE3-256 of a deployment's canonical document.
    DeploymentDigest, 32
}

impl DeploymentDigest {
    /// The digest of a canonical document.
    pub fn of(document: &[u8]) -> Self {
        Self(*blake3::hash(document).as_bytes())
    }

    /// The digest by which agents know a deployment, for whoever has no agent: a scheduler, say.
    ///
    /// # Errors
    /// When the document cannot be encoded, which no document that was checked does.
    ///
    /// ```
    /// use transload_layout::{Deployment, document::Value};
    /// use transload_transfer::ids::DeploymentDigest;
    ///
    /// let document = r#"{"schema": "transload.deployment/1", "block_size": 16, "num_blocks": 64,
    ///     "group": [{"name": "mla", "layers": "0-60", "spec": [
    ///         {"kind": "mla", "latent": 576, "dtype": "bf16"}]}]}"#;
    /// let deployment = Deployment::from_value(&serde_json::from_str::<Value>(document)?)?;
    /// let digest = DeploymentDigest::of_deployment(&deployment)?;
    /// assert_eq!(digest.to_string().len(), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_deployment(deployment: &Deployment) -> Result<Self, postcard::Error> {
        canonical_document(deployment).map(|document| Self::of(&document))
    }
}

/// The canonical bytes of a deployment: what agents send, and what its digest is of.
pub(crate) fn canonical_document(deployment: &Deployment) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_allocvec(deployment.document())
}

/// One life of a deployment: all ranks of an engine instance share it, and a restarted engine has
/// another.
///
/// Ordered by the time of the start. Where a peer shows a newer one than before, everything that
/// belonged to the older is dropped at once; where a clock was set back and a new life looks older,
/// that happens when the old connections are found dead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// From the wall clock at the start (milliseconds since 1970) and 64 random bits.
    pub fn new(started_ms: u64, random: u64) -> Self {
        Self((u128::from(started_ms) << 64) | u128::from(random))
    }

    /// A life that starts now, as agents without one draw it: for whoever shares one out among the agents
    /// of an engine instance.
    ///
    /// # Errors
    /// The system has no randomness to give.
    #[cfg(feature = "quic")]
    pub fn draw() -> std::io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let started = started.map_or(0, |since| since.as_millis() as u64);
        Ok(Self::new(started, u64::from_le_bytes(random)))
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

/// The secret that a data stream shows to be admitted: 128 unguessable bits for each attempt.
///
/// It travels only on authenticated control connections and at the head of data streams, and is
/// never printed.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Nonce(pub [u8; 16]);

impl PartialEq for Nonce {
    /// In constant time: how much of a guess was right is nobody's business.
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

/// Which way bytes move between the owner of a lease set and the holder of its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// The holder reads the owner's blocks.
    Pull,
    /// The holder writes into blocks that the owner has opened.
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
        assert_eq!(
            AgentId::new("prefill-0.a_b~").unwrap().as_str(),
            "prefill-0.a_b~"
        );
        assert_eq!(AgentId::new(""), Err(NameError::Empty));
        assert_eq!(
            AgentId::new("x".repeat(65)),
            Err(NameError::TooLong { bytes: 65 })
        );
        assert_eq!(
            AgentId::new("a/b"),
            Err(NameError::Character { found: '/' })
        );
        assert_eq!(
            ClusterName::new("ä"),
            Err(NameError::Character { found: 'ä' })
        );
    }

    #[test]
    fn names_are_checked_when_they_arrive() {
        let good = postcard::to_allocvec("a-1").unwrap();
        assert_eq!(
            postcard::from_bytes::<AgentId>(&good).unwrap().as_str(),
            "a-1"
        );
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
