//! The ways that bytes can take between two agents.

#[cfg(feature = "quic")]
pub mod quic;
#[cfg(feature = "local")]
pub mod ring;

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the bytes of one transfer travel. Always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Path {
    /// Over the network, encrypted.
    Quic,
    /// On one host through a staging ring: the source gathers, the destination scatters.
    Ring,
}

impl Path {
    const ALL: [Path; 2] = [Path::Quic, Path::Ring];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Quic => "quic",
            Path::Ring => "ring",
        })
    }
}

/// Some of the paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PathSet(u8);

impl PathSet {
    /// Every path.
    pub const ANY: PathSet = PathSet(Path::Quic.bit() | Path::Ring.bit());
    /// The network only.
    pub const QUIC: PathSet = PathSet(Path::Quic.bit());
    /// Those that stay on one host.
    pub const LOCAL: PathSet = PathSet(Path::Ring.bit());

    /// Whether `path` is one of them.
    pub fn contains(self, path: Path) -> bool {
        self.0 & path.bit() != 0
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: PathSet) -> PathSet {
        PathSet(self.0 & other.0)
    }

    /// Those that are in either.
    #[must_use]
    pub fn or(self, other: PathSet) -> PathSet {
        PathSet(self.0 | other.0)
    }

    /// Those that are not `path`.
    #[must_use]
    pub fn without(self, path: Path) -> PathSet {
        PathSet(self.0 & !path.bit())
    }

    /// The one to take: any that stays on one host before the network.
    pub fn best(self) -> Option<Path> {
        Path::ALL
            .into_iter()
            .rev()
            .find(|path| self.contains(*path))
    }
}

impl FromIterator<Path> for PathSet {
    fn from_iter<I: IntoIterator<Item = Path>>(paths: I) -> Self {
        PathSet(paths.into_iter().fold(0, |bits, path| bits | path.bit()))
    }
}

impl fmt::Display for PathSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Path::ALL.into_iter().filter(|path| self.contains(*path));
        match names.next() {
            None => f.write_str("no path"),
            Some(first) => {
                write!(f, "{first}")?;
                names.try_for_each(|path| write!(f, " or {path}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_way_is_taken() {
        assert_eq!(PathSet::ANY.best(), Some(Path::Ring));
        assert_eq!(PathSet::ANY.and(PathSet::QUIC).best(), Some(Path::Quic));
        assert_eq!(PathSet::LOCAL.and(PathSet::QUIC).best(), None);
        assert_eq!(
            PathSet::from_iter([Path::Quic, Path::Ring]).to_string(),
            "quic or ring"
        );
        assert_eq!(PathSet::ANY.without(Path::Ring).best(), Some(Path::Quic));
        assert_eq!(PathSet::default().to_string(), "no path");
    }
}
