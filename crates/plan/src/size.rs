//! The size of a plan, computed before the plan is made.

use std::collections::{HashMap, HashSet};

use transload_layout::Partition;

use crate::error::{MAX_SLICES, PlanError};
use crate::group::GroupPlan;
use crate::ranks::{Ranks, overlap};
use crate::sides::Sides;

/// Checks that a plan does not have too many slices, almost without allocating. Costs O(stages) for each group, and for
/// each different partition a step for each destination rank and each rank that the source deals tokens out to.
pub(crate) fn check(ranks: &Sides<Ranks<'_>>, stages: &[Sides<u32>], groups: &[GroupPlan]) -> Result<(), PlanError> {
    let tp = Sides::of(|side| ranks[side].deployment.tp());
    let mut slices = 0u128;
    // Groups that are dealt out to equally many ranks have the same pairs: `interleave` is that of the deployment.
    let mut pairs: HashMap<(Partition, Sides<u64>), u128> = HashMap::new();
    for group in groups {
        let slots = stages.iter().map(|pair| group.slots_in_common(ranks, pair).1);
        let in_common = slots.filter(|slots| !slots.is_empty());
        let dealt_to = group.deal.map(|deal| deal.ranks);
        let mut partitions: HashSet<Partition> = HashSet::new();
        let mut each = 0u128;
        for partition in group.partitions() {
            partitions.insert(partition);
            let known = pairs.entry((partition, dealt_to));
            each += *known.or_insert_with(|| rank_pairs(ranks, group, partition, tp));
        }
        // If replicas divide layers, all slices of a route are cut where a replica's range begins or ends.
        let replicas = |partition: &Partition, tp| partition.holders(tp, 0).map_or(1, |holders| holders.len());
        let alike = Sides::of(|side| tp[side] / dealt_to[side] as u32);
        let share = |partition: &Partition| replicas(partition, alike.src) > replicas(partition, alike.dst);
        let stretches = match partitions.len() {
            0 | 1 if !partitions.iter().any(share) => 1,
            partitions => 1 + 2 * partitions as u128,
        };
        // Counting the states that two ranks have in common may take more than one step.
        let steps = group.ranges.iter().map(|range| range.most_runs()).max();
        slices += each * stretches * in_common.count() as u128 * u128::from(steps.unwrap_or(1));
    }
    match slices > MAX_SLICES.into() {
        true => Err(PlanError::TooManySlices { slices }),
        false => Ok(()),
    }
}

/// Returns the number of pairs of TP ranks of which the first sends units of a partition to the second.
fn rank_pairs(ranks: &Sides<Ranks<'_>>, group: &GroupPlan, partition: Partition, tp: Sides<u32>) -> u128 {
    let senders = ranks.dst.tp.clone().flat_map(|rank| group.senders(partition, tp, rank));
    let counts = senders.map(|(senders, step)| overlap(&senders, &ranks.src.tp).len().div_ceil(step as usize) as u128);
    counts.sum()
}
