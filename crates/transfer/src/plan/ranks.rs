//! Which stages and ranks of both sides have a part in a plan.

use std::ops::Range;

use transload_layout::{Deployment, Rank, Side};

use super::error::PlanError;

/// The stages of one side that have a part in a plan, and the ranks within each.
pub(super) struct Ranks {
    pub(super) stages: Range<u32>,
    pub(super) tp: Range<u32>,
}

impl Ranks {
    /// All ranks of a deployment; or the stages and the places in them that some ranks span.
    pub(super) fn of(
        deployment: &Deployment,
        side: Side,
        only: Option<&[Rank]>,
    ) -> Result<Self, PlanError> {
        let Some(only) = only else {
            return Ok(Self {
                stages: 0..deployment.pp(),
                tp: 0..deployment.tp(),
            });
        };
        let last = deployment.tp() * deployment.pp() - 1;
        if let Some(&Rank(rank)) = only.iter().find(|rank| rank.0 > last) {
            return Err(PlanError::NoSuchRank { side, rank, last });
        }
        let places = only.iter().map(|rank| deployment.split_rank(*rank));
        let (tp, stages): (Vec<_>, Vec<_>) = places.unzip();
        Ok(Self {
            stages: span(&stages),
            tp: span(&tp),
        })
    }
}

/// From the least to the greatest.
fn span(numbers: &[u32]) -> Range<u32> {
    let ends = numbers.iter().min().zip(numbers.iter().max());
    ends.map_or(0..0, |(least, greatest)| *least..*greatest + 1)
}

/// The pairs of stages, source first, that hold layers in common.
pub(super) fn stages(
    (src, src_ranks): (&Deployment, &Ranks),
    (dst, dst_ranks): (&Deployment, &Ranks),
) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for dst_stage in dst_ranks.stages.clone() {
        let layers = dst.stage_layers(dst_stage);
        if layers.is_empty() {
            continue;
        }
        let holders = src.stages_of(&layers);
        let holders =
            holders.start.max(src_ranks.stages.start)..holders.end.min(src_ranks.stages.end);
        pairs.extend(holders.map(|src_stage| (src_stage, dst_stage)));
    }
    pairs
}
