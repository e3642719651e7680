//! Paths: the ways that bytes can take between two agents, and their negotiation.
//!
//! Each path has a [`Negotiation`](negotiation::Negotiation), which knows nothing of sockets. It takes the peer's words
//! and the reports of the carrier that moves streams, and returns orders and words. The carriers are in
//! `transload_transfer::path`.

pub(crate) mod device_ring;
pub(crate) mod negotiation;
pub(crate) mod quic;
pub(crate) mod ring;

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Serialize};
use transload_plan::codec::Codec;

/// A way that the bytes of one transfer can take. Every report contains it.
///
/// A number from 0 to 15, with the same meaning for all agents of a cluster. Two agents use the highest number that
/// they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Path(u8);

const PATHS: u8 = 16;

impl Path {
    /// Over the network, encrypted.
    pub const QUIC: Path = Path(0);
    /// The path within one host, through a staging ring: the source gathers, the destination scatters.
    pub const RING: Path = Path(1);
    /// The path within one host's GPUs, through a ring in device memory.
    pub const DEVICE: Path = Path(2);

    /// Returns the path with this number, from 0 to 15.
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

/// A set of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PathSet(u16);

impl PathSet {
    /// Every path.
    pub const ANY: PathSet = PathSet(u16::MAX);
    /// The network only.
    pub const QUIC: PathSet = PathSet(1 << Path::QUIC.0);
    /// All paths that stay on one host, that is, all but the network.
    pub const LOCAL: PathSet = PathSet(!PathSet::QUIC.0);

    /// Returns whether `path` is in the set.
    pub const fn contains(self, path: Path) -> bool {
        self.0 & (1 << path.0) != 0
    }

    /// Returns the paths that are in both sets.
    #[must_use]
    pub const fn and(self, other: PathSet) -> PathSet {
        PathSet(self.0 & other.0)
    }

    /// Returns the paths that can carry bytes in a codec. Codecs that are not exact use the network only, where sending
    /// fewer bytes is worth the work.
    #[must_use]
    pub fn carrying(self, codec: Codec) -> PathSet {
        match codec.is_exact() {
            true => self,
            false => self.and(PathSet::QUIC),
        }
    }

    /// Returns the path to use: one that stays on the host rather than the network.
    pub fn best(self) -> Option<Path> {
        self.iter().last()
    }

    /// Iterates over the paths, the network first.
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
