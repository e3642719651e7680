//! Replays traces of KVBoost 0.9.0, to compare its behaviour with ours.
//!
//! None of it is part of the product but the policy that [`eviction`] stands on.

pub mod eviction;
pub mod quantizer;

use std::ops::AddAssign;

use serde_json::Value;

/// The number of cases of some files that agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The number of cases that came out as recorded, bit for bit.
    pub agree: u64,
    /// Cases in all.
    pub of: u64,
}

impl Agreement {
    /// Counts a case.
    pub fn count(&mut self, agrees: bool) {
        *self += Self { agree: agrees.into(), of: 1 };
    }
}

impl AddAssign for Agreement {
    fn add_assign(&mut self, more: Self) {
        self.agree += more.agree;
        self.of += more.of;
    }
}

/// Replays a file if its name is one that is known.
///
/// # Errors
/// If it has not the form that files of this name have.
pub fn replay(name: &str, text: &str) -> Result<Option<Agreement>, String> {
    let replay: fn(&Value) -> Result<Agreement, String> = match name {
        "eviction.json" => eviction::replay,
        "quant_small.json" => quantizer::replay,
        "int4_pack.json" => quantizer::replay_packing,
        _ => return Ok(None),
    };
    let recorded = serde_json::from_str(text).map_err(|error| format!("{name}: {error}"))?;
    replay(&recorded).map(Some).map_err(|error| format!("{name}: {error}"))
}
