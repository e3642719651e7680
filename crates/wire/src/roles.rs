//! Roles: the permissions in a certificate.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A permission of an agent, in its certificate. Each kind of message requires one.
///
/// Refusals encode a role by the position of its variant, so the order of variants must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Role {
    /// May read leased blocks of others into its own, like a decode engine.
    Pull,
    /// May write into blocks that others have opened for it.
    Push,
    /// May renew leases.
    Renew,
    /// May own leases and serve them, like a prefill engine.
    Serve,
}

impl Role {
    /// All roles, in the order in which people are told of them.
    pub const ALL: [Self; 4] = [Self::Pull, Self::Push, Self::Serve, Self::Renew];

    /// Returns the role's name in certificates and configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Serve => "serve",
            Self::Renew => "renew",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not a role.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} is not a role; the roles are pull, push, serve and renew")]
#[non_exhaustive]
pub struct UnknownRole {
    /// The name given, cut to 32 characters.
    pub name: String,
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.name() == name)
            .ok_or_else(|| UnknownRole { name: name.chars().take(32).collect() })
    }
}

/// A set of roles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Roles(u8);

impl Roles {
    /// No role. Such an agent may only connect.
    pub const NONE: Self = Self(0);

    /// Returns the set of every role.
    #[must_use]
    pub fn all() -> Self {
        Self::from_iter(Role::ALL)
    }

    /// Returns whether the set contains `role`.
    #[must_use]
    pub const fn contains(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// Returns the set with `role` added.
    #[must_use]
    pub const fn with(self, role: Role) -> Self {
        Self(self.0 | role.bit())
    }

    /// Iterates over the roles, in the order of [`Role::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.contains(*role))
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        roles.into_iter().fold(Self::NONE, Self::with)
    }
}

impl FromStr for Roles {
    type Err = UnknownRole;

    /// Parses comma-separated names. An empty text is the empty set.
    fn from_str(names: &str) -> Result<Self, UnknownRole> {
        if names.is_empty() {
            return Ok(Self::NONE);
        }
        names.split(',').map(str::parse).collect()
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Role::name).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roles({self})")
    }
}
