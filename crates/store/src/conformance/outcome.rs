//! What comes of one item.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// What came of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// It is as the item asks.
    Pass,
    /// It is not, and the contract asks for it.
    Fail,
    /// It is not, and the contract leaves it open.
    Note,
    /// It could not be tried.
    Skipped,
}

impl Verdict {
    /// `pass`, `fail`, `note` or `skipped`.
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

/// What was seen where all is well, or why not.
pub(super) type Outcome = Result<String, Stop>;

/// Why an item ended early.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// What it asks for is not so; what was seen.
    Broken(String),
    /// It could not be tried; why.
    Skip(String),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Ends an item: what it asks for is not so.
macro_rules! broken {
    ($($text:tt)*) => {
        return Err($crate::conformance::outcome::Stop::Broken(format!($($text)*)))
    };
}

/// Ends an item unless this holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err($crate::conformance::outcome::Stop::Broken(format!($($text)*)));
        }
    };
}

pub(super) use {broken, ensure};
