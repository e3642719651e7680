//! Names of clusters and agents, and the URI that carries them in a certificate.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::roles::{Roles, UnknownRole};

/// The URI scheme of identities.
pub(super) const SCHEME: &str = "transload://";

/// The longest identity URI that is looked at, in bytes: both names and all roles fit in half of it.
pub(super) const MAX_URI_BYTES: usize = 512;

/// Everything that one authority vouches for: 1 to 63 characters of `a-z`, `0-9` and `-`, starting
/// and ending with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(String);

/// One agent of a cluster: 1 to 128 characters of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, starting
/// with a letter or digit.
///
/// It names whoever holds the certificate. Several processes may share one (the ranks of an
/// engine); what tells them apart is the incarnation they exchange after connecting.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentId(String);

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("the {what} is empty")]
    Empty {
        /// Which name: `cluster id` or `agent id`.
        what: &'static str,
    },
    /// The text is too long.
    #[error("the {what} is {actual} bytes long; {limit} are allowed")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Bytes allowed.
        limit: usize,
        /// Bytes given.
        actual: usize,
    },
    /// A character that the name must not have, or not there.
    #[error("the {what} must not have {character:?} at byte {position}; allowed are {allowed}")]
    Character {
        /// Which name.
        what: &'static str,
        /// The offending character.
        character: char,
        /// Its offset in bytes.
        position: usize,
        /// What would be right.
        allowed: &'static str,
    },
}

impl ClusterId {
    /// The longest cluster id, in bytes.
    pub const MAX_BYTES: usize = 63;

    /// A new cluster id of 80 random bits, for authorities whose operator has no name to give.
    ///
    /// # Errors
    /// The operating system's, when it has no randomness to give.
    pub fn random() -> Result<Self, std::io::Error> {
        let mut bytes = [0; 10];
        getrandom::fill(&mut bytes)?;
        let mut name = String::with_capacity(20);
        for byte in bytes {
            use fmt::Write as _;
            write!(name, "{byte:02x}").map_err(std::io::Error::other)?;
        }
        Ok(Self(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn check(name: &str) -> Result<(), NameError> {
        const WHAT: &str = "cluster id";
        const ALLOWED: &str = "a-z, 0-9 and '-', not at the ends";
        check_length(WHAT, name, Self::MAX_BYTES)?;
        let last = name.len() - 1;
        for (position, character) in name.char_indices() {
            let inner = position != 0 && position != last;
            match character {
                'a'..='z' | '0'..='9' => {}
                '-' if inner => {}
                _ => return Err(bad_character(WHAT, character, position, ALLOWED)),
            }
        }
        Ok(())
    }
}

impl AgentId {
    /// The longest agent id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn check(name: &str) -> Result<(), NameError> {
        const WHAT: &str = "agent id";
        const ALLOWED: &str = "A-Z, a-z, 0-9 and, after the first, '.', '_' and '-'";
        check_length(WHAT, name, Self::MAX_BYTES)?;
        for (position, character) in name.char_indices() {
            match character {
                'a'..='z' | 'A'..='Z' | '0'..='9' => {}
                '.' | '_' | '-' if position != 0 => {}
                _ => return Err(bad_character(WHAT, character, position, ALLOWED)),
            }
        }
        Ok(())
    }
}

fn check_length(what: &'static str, name: &str, limit: usize) -> Result<(), NameError> {
    match name.len() {
        0 => Err(NameError::Empty { what }),
        actual if actual > limit => Err(NameError::TooLong {
            what,
            limit,
            actual,
        }),
        _ => Ok(()),
    }
}

fn bad_character(
    what: &'static str,
    character: char,
    position: usize,
    allowed: &'static str,
) -> NameError {
    NameError::Character {
        what,
        character,
        position,
        allowed,
    }
}

macro_rules! text_name {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::check(name)?;
                Ok(Self(name.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(name: String) -> Result<Self, NameError> {
                Self::check(&name)?;
                Ok(Self(name))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text_name!(ClusterId);
text_name!(AgentId);

/// Who a certificate says its holder is.
///
/// Its text form is the URI of the certificate,
/// `transload://<cluster>/agent/<agent>?roles=<role>,<role>`: exactly that, with the roles in the
/// order of [`Role`](super::Role), each once. There is one way to write an identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// The cluster, i.e. the authority that vouches for the agent.
    pub cluster: ClusterId,
    /// The agent.
    pub agent: AgentId,
    /// What the agent may do.
    pub roles: Roles,
}

/// Why a URI is not that of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UriError {
    /// It is longer than any identity can be.
    #[error("the URI is {actual} bytes long; {limit} are allowed")]
    TooLong {
        /// Bytes allowed.
        limit: usize,
        /// Bytes given.
        actual: usize,
    },
    /// It does not have the form of an identity.
    #[error("the URI has not the form transload://CLUSTER/agent/AGENT?roles=ROLES")]
    Form,
    /// A name in it is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A role that does not exist.
    #[error(transparent)]
    Role(#[from] UnknownRole),
    /// Roles twice or in another order, so that one identity would have several texts.
    #[error("the roles are not written in their one order, each once: {expected:?} is right")]
    RoleOrder {
        /// How these roles are written.
        expected: String,
    },
}

impl FromStr for PeerIdentity {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<Self, UriError> {
        let rest = check_scheme(uri)?;
        let (cluster, rest) = rest.split_once("/agent/").ok_or(UriError::Form)?;
        let (agent, roles) = rest.split_once("?roles=").ok_or(UriError::Form)?;
        let identity = Self {
            cluster: cluster.parse()?,
            agent: agent.parse()?,
            roles: roles.parse()?,
        };
        let expected = identity.roles.to_string();
        if roles != expected {
            return Err(UriError::RoleOrder { expected });
        }
        Ok(identity)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cluster,
            agent,
            roles,
        } = self;
        write!(f, "{SCHEME}{cluster}/agent/{agent}?roles={roles}")
    }
}

/// The URI of an authority's own certificate, from which its cluster is known.
pub(super) fn authority_uri(cluster: &ClusterId) -> String {
    format!("{SCHEME}{cluster}/authority")
}

/// Reads [`authority_uri`] back.
pub(super) fn parse_authority_uri(uri: &str) -> Result<ClusterId, UriError> {
    let cluster = check_scheme(uri)?
        .strip_suffix("/authority")
        .ok_or(UriError::Form)?;
    Ok(cluster.parse()?)
}

fn check_scheme(uri: &str) -> Result<&str, UriError> {
    if uri.len() > MAX_URI_BYTES {
        return Err(UriError::TooLong {
            limit: MAX_URI_BYTES,
            actual: uri.len(),
        });
    }
    uri.strip_prefix(SCHEME).ok_or(UriError::Form)
}
