//! The stages and ranks of both sides that take part in a plan.

use std::ops::Range;

use transload_layout::{Deployment, Rank, Side};

use crate::error::PlanError;
use crate::sides::Sides;

/// The stages of one side that take part in a plan, and the TP ranks within each.
pub(crate) struct Ranks<'a> {
    pub(crate) deployment: &'a Deployment,
    pub(crate) stages: Range<u32>,
    pub(crate) tp: Range<u32>,
    only: Option<&'a [Rank]>,
}

impl<'a> Ranks<'a> {
    /// Returns all ranks of a deployment, or the smallest ranges of stages and TP ranks that contain the ranks `only`.
    pub(crate) fn of(deployment: &'a Deployment, side: Side, only: Option<&'a [Rank]>) -> Result<Self, PlanError> {
        let (mut stages, mut tp) = (0..deployment.pp(), 0..deployment.tp());
        if let Some(only) = only {
            let last = deployment.tp() * deployment.pp() - 1;
            if let Some(&Rank(rank)) = only.iter().find(|rank| rank.0 > last) {
                return Err(PlanError::NoSuchRank { side, rank, last });
            }
            let places = || only.iter().map(|rank| deployment.split_rank(*rank));
            stages = hull(places().map(|(_, stage)| stage..stage + 1));
            tp = hull(places().map(|(tp, _)| tp..tp + 1));
        }
        Ok(Self { deployment, stages, tp, only })
    }

    /// Tells whether a rank in these ranges is one of the requested ranks.
    pub(crate) fn include(&self, rank: Rank) -> bool {
        self.only.is_none_or(|only| only.contains(&rank))
    }
}

pub(crate) fn overlap<T: Ord + Copy>(a: &Range<T>, b: &Range<T>) -> Range<T> {
    a.start.max(b.start)..a.end.min(b.end)
}

pub(crate) fn hull<T: Ord + Default>(ranges: impl Iterator<Item = Range<T>>) -> Range<T> {
    let all = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
    all.unwrap_or_default()
}

/// Returns the pairs of stages that have layers in common.
pub(crate) fn stages(ranks: &Sides<Ranks<'_>>) -> Vec<Sides<u32>> {
    let mut pairs = Vec::new();
    for dst in ranks.dst.stages.clone() {
        let layers = ranks.dst.deployment.stage_layers(dst);
        if !layers.is_empty() {
            let holders = ranks.src.deployment.stages_of(&layers);
            let holders = overlap(&holders, &ranks.src.stages);
            pairs.extend(holders.map(|src| Sides { src, dst }));
        }
    }
    pairs
}
