//! The outcome of an item.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The verdict on one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// The requirement is met.
    Pass,
    /// The requirement is not met, and the contract demands it.
    Fail,
    /// The requirement is not met, and the contract leaves it open.
    Note,
    /// The item could not be tried.
    Skipped,
}

impl Verdict {
    /// Returns `pass`, `fail`, `note` or `skipped`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Note => "note",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The observation that an item reports, or the reason why it stopped.
pub(super) type Outcome = Result<String, Stop>;

#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// The requirement is not met. The text says what was observed.
    Broken(String),
    /// The item could not be tried. The text says why.
    Skip(String),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Broken(error.to_string())
    }
}

macro_rules! broken {
    ($($text:tt)*) => {
        return Err($crate::conformance::outcome::Stop::Broken(format!($($text)*)))
    };
}

macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err($crate::conformance::outcome::Stop::Broken(format!($($text)*)));
        }
    };
}

pub(super) use {broken, ensure};
