//! What a certificate allows its holder.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One thing that an agent may do. Configuration says which role each operation asks for.
///
/// Refusals name roles by their place here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Role {
    /// Read leased blocks of others into its own: a decode engine.
    Pull,
    /// Write into blocks that others have opened for it.
    Push,
    /// Prolong leases.
    Renew,
    /// Hold leases and serve them: a prefill engine.
    Serve,
}

impl Role {
    /// All roles, in the order in which they are written.
    pub const ALL: [Self; 4] = [Self::Pull, Self::Push, Self::Serve, Self::Renew];

    /// The role's name in certificates and configuration.
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

/// A name that is no role.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} is no role; there are pull, push, serve and renew")]
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
    /// No role: such an agent may connect, and no more.
    pub const NONE: Self = Self(0);

    /// Every role there is.
    #[must_use]
    pub fn all() -> Self {
        Self::from_iter(Role::ALL)
    }

    /// Whether `role` is among them.
    #[must_use]
    pub const fn contains(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// These roles and `role`.
    #[must_use]
    pub const fn with(self, role: Role) -> Self {
        Self(self.0 | role.bit())
    }

    /// The roles, in the order of [`Role::ALL`].
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

    /// Comma-separated names; an empty text is no role.
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
