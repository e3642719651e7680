//! The one path that all transfers of a test take.

use transload_tests::cluster::{Cache, Side};
use transload_transfer::agent::PullReport;
use transload_transfer::wire::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Ring,
    Shared,
}

impl Way {
    /// Memory for it, of sources above all.
    pub(crate) fn cache(way: Option<Self>, side: Side) -> Cache {
        match way {
            Some(Self::Shared) if side == Side::Prefill => Cache::lendable(side),
            _ => Cache::new(side),
        }
    }

    /// Whether all bytes have taken it.
    pub(crate) fn is_of(way: Option<Self>, report: &PullReport) -> Result<(), String> {
        let path = match way {
            None => return Ok(()),
            Some(Self::Ring) => Path::Ring,
            Some(Self::Shared) => Path::Shared,
        };
        match report.routes.iter().all(|route| route.path == path) {
            true => Ok(()),
            false => Err(format!("{report:?} where it was to be {path}")),
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        [Self::Ring, Self::Shared]
            .into_iter()
            .find(|way| name == way.name())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Shared => "shared",
        }
    }
}
