//! The engine that computed a cache, and which engines share saved caches.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The engine that computed a cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ComputedBy {
    /// The engine's name: `vllm`.
    pub engine: String,
    /// The exact version: `0.32.1+cpu`.
    pub version: String,
}

impl ComputedBy {
    /// Names an engine by its name and exact version.
    pub fn new(engine: impl Into<String>, version: impl Into<String>) -> Self {
        Self { engine: engine.into(), version: version.into() }
    }

    /// Returns the minor version: the part in front of the second dot, without a local part (`0.32` of `0.32.1+cpu`).
    pub fn minor_version(&self) -> &str {
        let public = self.version.split('+').next().unwrap_or_default();
        let minor = public.match_indices('.').nth(1);
        minor.map_or(public, |(end, _)| &public[..end])
    }
}

impl fmt::Display for ComputedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.engine, self.version)
    }
}

/// The part of two engines' descriptions that has to be equal for them to find each other's saved caches. With
/// `Version`, an engine that corrects its computation in a new minor version does not find what it computed before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sharing {
    /// No part has to be equal: all engines share.
    Any,
    /// The engine's name.
    Engine,
    /// The engine's name and minor version.
    #[default]
    Version,
}

impl Sharing {
    pub(crate) fn of(self, by: &ComputedBy) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Any => (None, None),
            Self::Engine => (Some(&by.engine), None),
            Self::Version => (Some(&by.engine), Some(by.minor_version())),
        }
    }
}

/// The error for a text that is none of `any`, `engine` and `version`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not say which engines share what they save: write any, engine or version")]
pub struct NoSharing(String);

impl FromStr for Sharing {
    type Err = NoSharing;

    fn from_str(text: &str) -> Result<Self, NoSharing> {
        [Self::Any, Self::Engine, Self::Version]
            .into_iter()
            .find(|sharing| sharing.to_string() == text)
            .ok_or_else(|| NoSharing(text.to_owned()))
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Engine => "engine",
            Self::Version => "version",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_versions_are_what_is_in_front_of_the_second_dot() {
        for (version, minor) in [
            ("0.32.0", "0.32"),
            ("0.32.1.dev7+gabc.d", "0.32"),
            ("1.2", "1.2"),
            ("1.2+cu12.8", "1.2"),
            ("main", "main"),
            ("", ""),
        ] {
            assert_eq!(ComputedBy::new("e", version).minor_version(), minor);
        }
    }

    #[test]
    fn settings_are_words() {
        for sharing in [Sharing::Any, Sharing::Engine, Sharing::Version] {
            assert_eq!(sharing.to_string().parse(), Ok(sharing));
        }
        assert!("Version".parse::<Sharing>().is_err());
    }
}
