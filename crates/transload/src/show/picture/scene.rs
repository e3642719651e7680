//! The contents of a picture.

use transload::layout::Deployment;
use transload::transfer::plan::BoundPlan;
use transload::transfer::{Plan, Tables};

use super::svg::fit;

/// A transfer: both sides, the plan between them, and its block tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) sides: [&'a Deployment; 2],
    pub(crate) plan: &'a Plan,
    pub(crate) bound: &'a BoundPlan,
    /// The tables that `bound` is bound to.
    pub(crate) tables: [&'a Tables; 2],
}

impl Scene<'_> {
    /// Returns the sides' own names, or their roles.
    pub(super) fn names(&self) -> [&str; 2] {
        [0, 1].map(|side| match self.sides[side].name() {
            "" => ["source", "destination"][side],
            name => name,
        })
    }

    /// Returns the sides' names for use in a sentence.
    pub(super) fn called(&self) -> [String; 2] {
        self.names().map(|name| match name {
            "source" | "destination" => format!("the {name}"),
            name => fit(name, 220.0, 12.0).into_owned(),
        })
    }
}
