//! Paths: the ways that bytes can take between two agents, as far as agents talk about them.
//!
//! Each has a [`Negotiation`](negotiation::Negotiation), which knows nothing of sockets: it hears the words of the peer and
//! the reports of what carries streams, and gives orders and words. Carriers are `transload_transfer::path`'s.

pub(crate) mod device_ring;
pub(crate) mod negotiation;
pub(crate) mod quic;
pub(crate) mod ring;

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Serialize};
use transload_plan::codec::Codec;

/// How the bytes of one transfer travel. Always reported.
///
/// A number from 0 to 15, the same for all agents of a cluster. Among those that two agents share, the one with the
/// greatest is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Path(u8);

/// How many paths there can be.
const PATHS: u8 = 16;

impl Path {
    /// Over the network, encrypted.
    pub const QUIC: Path = Path(0);
    /// On one host through a staging ring: the source gathers, the destination scatters.
    pub const RING: Path = Path(1);
    /// On one GPU through a ring in its memory, likewise.
    pub const DEVICE: Path = Path(2);

    /// The path with this number, from 0 to 15.
    pub const fn new(number: u8) -> Option<Path> {
        match number < PATHS {
            true => Some(Path(number)),
            false => None,
        }
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = u8::deserialize(from)?;
        Path::new(number).ok_or_else(|| serde::de::Error::custom("paths are numbered from 0 to 15"))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Path::QUIC => f.write_str("quic"),
            Path::RING => f.write_str("ring"),
            Path::DEVICE => f.write_str("device"),
            Path(number) => write!(f, "path {number}"),
        }
    }
}

/// Some of the paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PathSet(u16);

impl PathSet {
    /// Every path.
    pub const ANY: PathSet = PathSet(u16::MAX);
    /// The network only.
    pub const QUIC: PathSet = PathSet(1 << Path::QUIC.0);
    /// Those that stay on one host: all but the network.
    pub const LOCAL: PathSet = PathSet(!PathSet::QUIC.0);

    /// Whether `path` is one of them.
    pub const fn contains(self, path: Path) -> bool {
        self.0 & (1 << path.0) != 0
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: PathSet) -> PathSet {
        PathSet(self.0 & other.0)
    }

    /// Those that carry bytes in a codec: of others than exact ones the network, where fewer bytes are worth the work.
    #[must_use]
    pub fn carrying(self, codec: Codec) -> PathSet {
        match codec.is_exact() {
            true => self,
            false => self.and(PathSet::QUIC),
        }
    }

    /// The one to take: any that stays on one host before the network.
    pub fn best(self) -> Option<Path> {
        self.iter().last()
    }

    /// All of them, the network first.
    pub fn iter(self) -> impl Iterator<Item = Path> {
        (0..PATHS).map(Path).filter(move |path| self.contains(*path))
    }
}

impl From<Path> for PathSet {
    fn from(path: Path) -> Self {
        PathSet(1 << path.0)
    }
}

impl FromIterator<Path> for PathSet {
    fn from_iter<I: IntoIterator<Item = Path>>(paths: I) -> Self {
        let paths = paths.into_iter().map(|path| 1 << path.0);
        PathSet(paths.fold(0, u16::bitor))
    }
}

impl fmt::Display for PathSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == PathSet::ANY {
            return f.write_str("any path");
        }
        let mut names = self.iter();
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
        let both = PathSet::from_iter([Path::QUIC, Path::RING]);
        assert_eq!(both.best(), Some(Path::RING));
        assert_eq!(PathSet::from_iter([Path::RING, Path::DEVICE]).best(), Some(Path::DEVICE));
        assert_eq!(both.and(PathSet::QUIC).best(), Some(Path::QUIC));
        assert_eq!(PathSet::LOCAL.and(PathSet::QUIC).best(), None);
        assert_eq!(both.to_string(), "quic or ring");
        assert_eq!(PathSet::default().to_string(), "no path");
        assert_eq!(PathSet::ANY.to_string(), "any path");
    }

    #[test]
    fn a_number_beyond_the_last_is_no_path() {
        assert_eq!(Path::new(16), None);
        assert_eq!(postcard::from_bytes(&[15]), Ok(Path(15)));
        assert!(postcard::from_bytes::<Path>(&[16]).is_err());
    }
}
