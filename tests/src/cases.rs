//! Random deployment pairs that can be bridged, with a request each.
//!
//! A case is read off a tape of numbers, so that a test framework can shrink it: zeros and short tapes
//! give the simplest cases. Sizes are small, since the oracle works byte by byte.

mod model;
mod order;
mod side;
mod table;
mod tape;

use std::fmt;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::oracle::Request;

use model::Model;
pub use tape::Tape;

/// Two deployments and what to move between them.
#[derive(Clone)]
pub struct Case {
    /// The source's document.
    pub from: Value,
    /// The destination's document.
    pub to: Value,
    /// The request to move.
    pub request: Request,
    /// Features of the case whose meaning the reference leaves open; empty unless asked for.
    pub disputed: Vec<&'static str>,
}

/// Tells whether cases may use what the reference does not specify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Uses only what the reference specifies.
    Settled,
    /// Uses all features.
    Disputed,
}

impl Case {
    /// Reads a case off a tape.
    pub fn read(numbers: &[u16], reach: Reach) -> Self {
        let mut tape = Tape::new(numbers, reach);
        let model = Model::read(&mut tape);
        let plan = side::choose(&mut tape, &model);
        let (from, to) = (
            side::document(&mut tape, &model, &plan, side::Which::From),
            side::document(&mut tape, &model, &plan, side::Which::To),
        );
        let request = Request {
            start: plan.start,
            tokens: plan.tokens,
            src_blocks: table::tables(&mut tape, &from, plan.start, plan.tokens),
            dst_blocks: table::tables(&mut tape, &to, plan.start, plan.tokens),
        };
        let mut disputed = tape.disputed();
        disputed.sort_unstable();
        disputed.dedup();
        Self { from, to, request, disputed }
    }

    /// Reads what [`Case::to_json`] has written.
    pub fn from_json(case: &Value) -> Result<Self, serde_json::Error> {
        let part = |key: &str| case[key].clone();
        Ok(Self {
            from: part("from"),
            to: part("to"),
            request: Request {
                start: serde_json::from_value(part("start"))?,
                tokens: serde_json::from_value(part("tokens"))?,
                src_blocks: serde_json::from_value(part("src_blocks"))?,
                dst_blocks: serde_json::from_value(part("dst_blocks"))?,
            },
            disputed: Vec::new(),
        })
    }

    /// Returns the documents and the request as one JSON text.
    pub fn to_json(&self) -> Value {
        json!({
            "from": self.from,
            "to": self.to,
            "start": self.request.start,
            "tokens": self.request.tokens,
            "src_blocks": self.request.src_blocks,
            "dst_blocks": self.request.dst_blocks,
            "disputed": self.disputed,
        })
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_json())
    }
}

/// Returns the regression cases, by name.
pub fn kept() -> Vec<(String, Case)> {
    let sources = std::env::var("CARGO_MANIFEST_DIR");
    let sources = sources.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let entries = std::fs::read_dir(format!("{sources}/vectors/cases")).unwrap();
    let cases = entries.map(|entry| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let case = Case::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
        (path.display().to_string(), case)
    });
    let cases: Vec<_> = cases.collect();
    assert!(cases.len() >= 3, "only {} cases found", cases.len());
    cases
}

/// Returns cases for proptest.
pub fn cases(reach: Reach) -> impl Strategy<Value = Case> {
    prop::collection::vec(any::<u16>(), 0..400).prop_map(move |tape| Case::read(&tape, reach))
}
