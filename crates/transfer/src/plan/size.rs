//! How large a plan becomes, told before any of it is made.

use transload_layout::Deployment;
use transload_layout::partition::Partition;

use super::error::{MAX_SLICES, PlanError};
use super::group::GroupPlan;
use super::ranks::Ranks;

/// Checks that a plan between these stages would not have too many slices. Costs O(stages) and O(ranks) for
/// each component, and no memory.
pub(super) fn check(
    (src, src_ranks): (&Deployment, &Ranks),
    (dst, dst_ranks): (&Deployment, &Ranks),
    stages: &[(u32, u32)],
    groups: &[GroupPlan],
) -> Result<(), PlanError> {
    let mut slices = 0u128;
    for group in groups {
        let here = (
            &src.groups()[group.src_group],
            &dst.groups()[group.dst_group],
        );
        let in_common = stages.iter().filter(|(src_stage, dst_stage)| {
            let (mine, theirs) = (
                here.0.stage_slots(*src_stage),
                here.1.stage_slots(*dst_stage),
            );
            mine.start.max(theirs.start) < mine.end.min(theirs.end)
        });
        let mut pairs: Vec<(Partition, u64)> = Vec::new();
        let mut each = 0u128;
        for partition in group.partitions() {
            let known = pairs.iter().find(|(known, _)| *known == partition);
            let count = known.map(|(_, count)| *count).unwrap_or_else(|| {
                let senders = dst_ranks.tp.clone().map(|rank| {
                    // Units went into both TP sizes when the deployments were checked.
                    let senders = partition.senders(src.tp(), (dst.tp(), rank));
                    let senders = senders.unwrap_or(0..0);
                    let tp = &src_ranks.tp;
                    u64::from(
                        senders
                            .end
                            .min(tp.end)
                            .saturating_sub(senders.start.max(tp.start)),
                    )
                });
                pairs.push((partition, senders.sum()));
                pairs[pairs.len() - 1].1
            });
            each += u128::from(count);
        }
        // Replicas that share out layers cut all slices of a route where the stretch of one begins or ends.
        let replicas =
            |partition: &Partition, tp| partition.holders(tp, 0).map_or(1, |holders| holders.len());
        let share = |(partition, _): &(Partition, u64)| {
            replicas(partition, src.tp()) > replicas(partition, dst.tp())
        };
        let stretches = match pairs.len() {
            0 | 1 if !pairs.iter().any(share) => 1,
            partitions => 1 + 2 * partitions as u128,
        };
        slices += each * stretches * in_common.count() as u128;
    }
    match slices > MAX_SLICES.into() {
        true => Err(PlanError::TooManySlices { slices }),
        false => Ok(()),
    }
}
